#!/usr/bin/env python
"""Where a training step of PHyCLIP at preset `mini` goes: CPU seconds by part, before and after.

    MALLOC_MMAP_THRESHOLD_=134217728 MALLOC_TRIM_THRESHOLD_=1073741824 python benchmarks/step.py

`before` switches every saving off; each further row switches one more on, the last is the recipe
as it stands, with the optimiser that needs fewer steps. One thread, CPU time of this process, best
of `--repeats` updates on a few hundred scenes of the synthetic dataset. The two variables, which the
Makefile sets too, keep glibc from giving large tensors back to the system and asking for them
again at each step.
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from clock import least_cpu_seconds
from torch.nn import functional as F

from hypvl.losses.terms import Context
from hypvl.models.registry import create_model
from hypvl.models.text import TextBlock
from hypvl.models.towers import ConvBlock, ConvTower
from hypvl.papers.clip_line import recipe
from hypvl.training.optim import make_optimizer

PARTS = ("reading", "images", "texts", "objective", "optimiser")
FULL = {"text.vocabulary": (), "text.merge_repeats": False, "text.buckets": 8}
WORDS = {"text.merge_repeats": False, "text.buckets": 8}


@contextmanager
def swapped(owner: type, name: str, value: Callable) -> Iterator[None]:
    "A method of a class, replaced for a while."
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def block_at_all_positions(self, x, mask=None, padding=None, ends=None):
    "A block of the text tower that works at every position."
    h = self.ln_1(x)
    how = dict(need_weights=False, attn_mask=mask, key_padding_mask=padding)
    a = self.attn(h, h, h, is_causal=mask is not None, **how)[0]
    x = x + a
    return h, a, x + self.mlp(self.ln_2(x))


def block_that_copies(self, x):
    "A block of the image tower with a ReLU that makes a new tensor."
    return F.relu(self.norm(self.conv(x)))


def states_always_pooled(self, images, want=()):
    "The image tower with a pooling of 3×3 places to 3×3 places."
    x = images.contiguous(memory_format=torch.channels_last)
    for n in range(1, len(self.config.channels) + 1):
        x = self.get_submodule(f"stage{n}")(x)
    places = F.adaptive_avg_pool2d(x, self.grid).flatten(1)
    return self.norm(self.head(places)), {}


def backward(points: dict) -> None:
    "A backward pass from points without an objective."
    sum(p.square().sum() for p in points.values()).backward()


def measure(made, data, changes: dict, repeats: int, optimizer: str = "adamw") -> dict:
    "Best CPU seconds of each part of a step."
    model = create_model(made.model, seed=0, **changes)
    size, count = made.image_size, made.train.batch_size
    loader = made.data.loader(data, model.tokenizer, size, count)
    batches = iter(loader)
    for _ in range(3 * made.data.train // count):
        batch = next(batches)  # until every image that is drawn often is decoded
    found = {"reading": least_cpu_seconds(lambda: next(batches), repeats)}
    for part, inputs in (("images", ("image", "box_image")), ("texts", ("text", "box_text"))):
        found[part] = least_cpu_seconds(lambda: backward(model.embed(batch, inputs)), repeats)
    objective = made.objective.make()
    with torch.no_grad():
        points = model.embed(batch, objective.inputs)
    points = {name: p.detach().requires_grad_() for name, p in points.items()}
    context = dict(step=10**6, kinds=loader.kinds)

    def update():
        loss, _ = objective(points, model.geometry, 10**6, context=Context(**context))
        loss.backward()

    found["objective"] = least_cpu_seconds(update, repeats)
    trained = make_optimizer(model, name=optimizer)

    def clip_and_step():
        torch.nn.utils.clip_grad_norm_(list(model.parameters()), 1.0)
        trained.step()

    found["optimiser"] = least_cpu_seconds(clip_and_step, repeats)
    return found


def print_row(name: str, found: dict) -> None:
    "A row of the table, milliseconds."
    parts = [1000 * found[part] for part in PARTS]
    cells = " | ".join(f"{x:.0f}" for x in (*parts, sum(parts)))
    print(f"| {name} | {cells} |", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenes", type=int, default=768)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--data", type=Path, help="folder that keeps the scenes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    made = recipe("phyclip", "mini", **{"data.train": args.scenes, "data.val": 64})
    wanted = [name for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")]
    kept = all(name in os.environ for name in wanted)
    print(f"glibc keeps large tensors: {'yes' if kept else 'no'}\n")
    print(f"| CPU ms a step | {' | '.join(PARTS)} | sum |")
    print("|---|" + "---:|" * (len(PARTS) + 1))
    with tempfile.TemporaryDirectory() as folder:
        data = made.data.prepare(args.data or folder, made.image_size, progress=False)
        all_positions = swapped(TextBlock, "forward", block_at_all_positions)
        copies = swapped(ConvBlock, "forward", block_that_copies)
        pooled = swapped(ConvTower, "forward_states", states_always_pooled)
        with copies, pooled:
            with all_positions:
                print_row("before", measure(made, data, FULL, args.repeats))
                print_row("+ table of the words", measure(made, data, WORDS, args.repeats))
            print_row("+ last block at end marks", measure(made, data, WORDS, args.repeats))
        print_row("+ ReLU in place, no idle pooling", measure(made, data, WORDS, args.repeats))
        few = WORDS | {"text.buckets": 4}
        print_row("+ four groups by length", measure(made, data, few, args.repeats))
        print_row("+ repeats run once", measure(made, data, {}, args.repeats))
        print_row("+ Muon (the recipe)", measure(made, data, {}, args.repeats, "muon"))


if __name__ == "__main__":
    main()
