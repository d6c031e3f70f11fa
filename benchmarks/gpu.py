#!/usr/bin/env python
"""Times on one GPU: the product contrast in each form, and whole training steps beside open_clip's.

    python benchmarks/gpu.py --out gpu.json                # six minutes on a card
    TRITON_INTERPRET=1 python benchmarks/gpu.py --tiny     # a trial on a CPU, in the interpreter

Contrast: both directions from [N, k, d] leaves to all gradients; median seconds of several calls,
and the most memory above the leaves. Steps: CLIP, MERU and PHyCLIP in our trainer, and open_clip's
`train_one_epoch`, the same random pixels and captions of full length, bfloat16. The JSON file is
written again after each row, so a run that is cut short keeps what it measured.
"""

import argparse
import json
import logging
import platform
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from product import make_batch

from hypvl.geometry import gpu_kernels, literal
from hypvl.geometry.pairwise import product_cross_entropy_both
from hypvl.models.registry import create_model
from hypvl.papers.clip_line import recipe
from hypvl.training.loop import Trainer

SIZES = ((768, 64, 8), (4096, 64, 8), (256, 64, 8), (768, 8, 8), (768, 1, 8), (32768, 64, 8))
OPERATIONS = 60  # float32 operations per pair and factor, for the share of the card's peak


def now(device):
    "Wall clock when the device is done."
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def peak_gib(device, held=0):
    "Most memory in use since the last reset, above what was held; None on a CPU."
    if device.type != "cuda":
        return None
    return (torch.cuda.max_memory_allocated() - held) / 2**30


def card(device):
    "Card, versions and float32 peak."
    found = {"python": platform.python_version(), "torch": torch.__version__}
    found["triton"] = gpu_kernels.triton.__version__
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        found |= {"card": facts.name, "cuda": torch.version.cuda}
        found |= {"gib": facts.total_memory / 2**30, "sm": facts.multi_processor_count}
        clock = getattr(facts, "clock_rate", 0) * 1e3  # Hz
        found["float32_peak"] = facts.multi_processor_count * 128 * 2 * clock or None
    return found


# Contrast


def textbook(x, y, c, scale):
    "All factors at once, in autograd."
    d = literal.pairwise_dist(x.movedim(1, 0), y.movedim(1, 0), c=c, eps=1e-6).mean(0)
    target = torch.arange(len(d), device=d.device)
    return F.cross_entropy(-scale * d, target) + F.cross_entropy(-scale * d.T, target)


def package(form):
    "The package's contrast, by torch's operations or by kernels."

    def loss(x, y, c, scale):
        rows, columns = product_cross_entropy_both(x, y, c=c, scale=scale, form=form)
        return rows.mean() + columns.mean()

    return loss


def time_contrast(loss, size, device, seconds):
    "Median seconds forward and of both passes, memory, and the loss."
    batch, k, d = size
    leaves = [t.to(device).requires_grad_() for t in make_batch("random", batch, k, d)]
    leaves += [torch.ones(k, device=device, requires_grad=True)]
    leaves += [torch.tensor(4.0, device=device, requires_grad=True)]
    start = now(device)
    torch.autograd.grad(loss(*leaves), leaves)  # compiles
    first = now(device) - start
    held = 0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    forward, both, began = [], [], now(device)
    while len(both) < 3 or (now(device) - began < seconds and len(both) < 50):
        start = now(device)
        value = loss(*leaves)
        forward.append(now(device) - start)
        torch.autograd.grad(value, leaves)
        both.append(now(device) - start)
    times = {"forward": statistics.median(forward), "both": statistics.median(both)}
    return {**times, "first": first, "gib": peak_gib(device, held), "loss": value.item()}


def contrast_rows(options, device):
    "Rows of each size and form."
    sizes = ((40, 2, 8),) if options.tiny else SIZES
    forms = [("textbook", textbook, None), ("plain", package("auto"), None)]
    forms += [
        ("kernels", package("triton"), tile) for tile in ((16, 32) if options.tiny else (32, 64))
    ]
    for size in sizes:
        for name, loss, tile in forms:
            if size[0] > 8192 and name != "kernels":
                continue  # more memory or time than there is
            row = {"size": "x".join(map(str, size)), "form": name, "tile": tile}
            gpu_kernels.TILE = tile or 32
            try:
                row |= time_contrast(loss, size, device, options.seconds)
            except Exception as error:  # a form that fails is a row, not the end
                row["error"] = f"{type(error).__name__}: {error}"[:300]
                torch.cuda.empty_cache()
            yield row
    gpu_kernels.TILE = 32


# Whole steps


def captions(count):
    "Captions that fill the text tower's context."
    return [" ".join(f"thing {n} {i}" for i in range(60)) for n in range(count)]


class Repeated:
    "The same batch again and again."

    def __init__(self, batch, count):
        self.batch, self.count = batch, count
        self.num_batches, self.num_samples = count, count * len(batch[0])

    def __iter__(self):
        for _ in range(self.count):
            yield self.batch if isinstance(self.batch, tuple) else dict(self.batch)


def time_trainer(family, form, options, device):
    "Seconds of a step of our trainer."
    made = recipe(family, "smoke" if options.tiny else "paper", "B", boxes=False)
    changes = {"text.vocabulary": ()} | ({"geometry.form": form} if form else {})
    model = create_model(made.model, seed=0, **changes)
    shape = options.batch, 3, made.image_size, made.image_size
    images = torch.randint(0, 256, shape, dtype=torch.uint8)
    batch = {"image": images, "text": model.tokenizer(captions(options.batch))}
    steps, ends = options.warm + options.steps, []

    def note(trainer, row):
        ends.append(now(device))

    precision = "no" if device.type == "cpu" else "bf16"
    config = replace(
        made.train, steps=steps, warmup=0, batch_size=options.batch, precision=precision
    )
    config = replace(config, checkpoint_every=0, log_every=1, progress=False, tensorboard=False)
    loader = [batch] * (steps + 1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(model, made.objective.make(), loader, config, folder, callbacks=[note])
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        trainer.fit(resume=False)
    seconds = [b - a for a, b in zip(ends, ends[1:])][options.warm :]
    return seconds, peak_gib(device)


def time_open_clip(options, device):
    "Seconds of a step of open_clip's own loop."
    import open_clip
    from open_clip_train import train

    if options.tiny:
        vision, text = dict(layers=1, width=64, image_size=32), dict(layers=1, width=64, heads=2)
        model = open_clip.CLIP(64, {**vision, "patch_size": 16}, text, output_dict=True)
        size = 32
    else:
        model = open_clip.create_model("ViT-B-16", output_dict=True)
        size = 224
    model = model.to(device)
    images = torch.randn(options.batch, 3, size, size)
    tokens = open_clip.get_tokenizer("ViT-B-16")(captions(options.batch))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.2)
    precision = "fp32" if device.type == "cpu" else "amp_bf16"
    args = SimpleNamespace(
        device=str(device), precision=precision, distill=False, accum_freq=1, skip_scheduler=True,
        grad_clip_norm=None, horovod=False, log_every_n_steps=10**9, batch_size=options.batch,
        world_size=1, rank=0, local_rank=0, distributed=False, wandb=False, log_local=False,
    )  # fmt: skip

    def epoch(count):
        data = SimpleNamespace(
            dataloader=Repeated((images, tokens), count), set_epoch=lambda n: None
        )
        train.train_one_epoch(
            model, {"train": data}, open_clip.ClipLoss(), 0, optimizer, None, None, None, args
        )

    logging.disable(logging.INFO)
    epoch(options.warm)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = now(device)
    epoch(options.steps)
    return [(now(device) - start) / options.steps], peak_gib(device)


def step_rows(options, device):
    "Rows of each model and trainer."
    from importlib.metadata import version

    runs = [(f"open_clip {version('open_clip_torch')}", lambda: time_open_clip(options, device))]
    for family, form in (
        ("clip", None),
        ("meru", None),
        ("phyclip", "auto"),
        ("phyclip", "triton"),
    ):
        label = f"hypvl {family}" + (f", form {form}" if form else "")
        runs += [(label, lambda f=family, by=form: time_trainer(f, by, options, device))]
    for label, call in runs:
        row = {"step": label, "batch": options.batch}
        try:
            seconds, gib = call()
            middle = statistics.median(seconds)
            row |= {"seconds": middle, "samples_per_second": options.batch / middle, "gib": gib}
        except Exception as error:  # a model that fails is a row, not the end
            row["error"] = f"{type(error).__name__}: {error}"[:300]
        if device.type == "cuda":
            torch.cuda.empty_cache()
        yield row


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--tiny", action="store_true", help="a trial on a CPU")
    parser.add_argument("--batch", type=int, default=768)
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=2.0, help="of repeats per form and size")
    options = parser.parse_args()
    device = torch.device("cpu" if options.tiny else "cuda")
    if options.tiny:
        options.batch, options.warm, options.steps, options.seconds = 8, 1, 2, 0.0
    found = {"machine": card(device), "contrast": [], "steps": []}
    for part, rows in (("contrast", contrast_rows), ("steps", step_rows)):
        for row in rows(options, device):
            peak, times = found["machine"].get("float32_peak"), row.get("both")
            if peak and times:
                n, k, _ = map(int, row["size"].split("x"))
                row["share_of_peak"] = OPERATIONS * n * n * k / times / peak
            print(json.dumps(row), flush=True)
            found[part].append(row)
            options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
