#!/usr/bin/env python
"""What careful reading costs: shards beside a bare webdataset loop, evaluation beside open_clip's.

Both sides of a row do the same work on the same files in one process, in turns, and CPU time
counts: `python benchmarks/real_data.py --samples 800 --images 200 --rounds 3`
"""

import argparse
import io
import tempfile
import time
from pathlib import Path

import numpy as np
import open_clip
import pandas as pd
import torch
import webdataset as wds
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from hypvl.data.batches import Loader
from hypvl.data.grit.shard_dataset import ShardDataset
from hypvl.data.grit.shards import write_shard
from hypvl.evaluation.zero_shot import evaluate_zero_shot
from hypvl.models import from_open_clip

TEMPLATES = ("a photo of a {}.", "a picture of a {}.")
MODEL = "ViT-B-32"


def photograph(rng, width: int, height: int) -> bytes:
    "A JPEG with the detail of a photograph."
    coarse = rng.integers(0, 255, (height // 16, width // 16, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    noise = rng.normal(0, 6, (height, width, 1))
    pixels = (np.asarray(picture) + noise).clip(0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def write_photographs(path: Path, size: int, samples: int, rng) -> None:
    "A shard of samples with a picture and two boxes each, of 32 photographs."
    pool, rows = [photograph(rng, size, size) for _ in range(32)], []
    for i in range(samples):
        row = {"__key__": f"{i:06d}", "child.jpg": pool[i % 32], "child.txt": f"caption {i}"}
        row |= {"numparents.txt": "2", "parent000.txt": "a dog", "parent001.txt": "a bed"}
        rows.append(row | {"parent000.jpg": pool[(i + 1) % 32], "parent001.jpg": pool[i % 31]})
    write_shard(path, rows)


def write_data(folder: Path, samples: int, images: int) -> None:
    rng = np.random.default_rng(0)
    write_photographs(folder / "00000.tar", 224, samples, rng)
    for i in range(images):
        place = folder / "classes" / f"class {i % 10}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i:05d}.jpg").write_bytes(photograph(rng, 480, 352))


def bare_shards(folder: Path, tokenizer) -> int:
    "webdataset as its documentation has it: decode, stack, tokenise."

    def decoded(sample):
        pixels = []
        for name in ("child.jpg", "parent000.jpg"):
            image = Image.open(io.BytesIO(sample[name])).convert("RGB")
            pixels.append(torch.from_numpy(np.array(image)).permute(2, 0, 1))
        return *pixels, sample["child.txt"].decode(), sample["parent000.txt"].decode()

    shards = wds.WebDataset(str(folder / "00000.tar"), shardshuffle=False).map(decoded)
    count = 0
    for images, boxes, texts, phrases in shards.batched(64, collation_fn=lambda b: zip(*b)):
        batch = torch.stack(images), torch.stack(boxes), tokenizer(texts), tokenizer(phrases)
        count += len(batch[0])
    return count


def our_shards(folder: Path, tokenizer) -> int:
    dataset = ShardDataset(folder, tokenizer, 224, train=False)
    return sum(len(b["image"]) for b in Loader(dataset, 64))


@torch.no_grad()
def bare_zero_shot(model, transform, tokenizer, folder: Path) -> float:
    "open_clip's own loop: `build_zero_shot_classifier`, then batches of a class folder."
    data = ImageFolder(str(folder / "classes"), transform=transform)
    templates = [lambda name, t=t: t.replace("{}", name) for t in TEMPLATES]
    weights = open_clip.build_zero_shot_classifier(model, tokenizer, data.classes, templates)
    right = 0
    for images, targets in DataLoader(data, 64):
        points = model.encode_image(images, normalize=True)
        right += ((100.0 * points @ weights).argmax(1) == targets).sum().item()
    return right / len(data)


def our_zero_shot(model, folder: Path) -> float:
    data = ImageFolder(str(folder / "classes"))
    paths, targets = zip(*data.samples)
    items, _ = evaluate_zero_shot(
        model, paths, targets, data.classes, TEMPLATES, dataset="x", scores=("paper",)
    )
    return items.loc[items["metric"] == "accuracy_micro", "value"].mean()


def cpu_seconds(call) -> tuple[float, float]:
    start = time.process_time()
    value = call()
    return time.process_time() - start, value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=800)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    theirs, _, transform = open_clip.create_model_and_transforms(MODEL)
    theirs.eval()
    tokenizer = open_clip.get_tokenizer(MODEL)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder, args.samples, args.images)
        torch.save(theirs.state_dict(), folder / "weights.pt")
        ours = from_open_clip(MODEL, folder / "weights.pt").eval()
        for part, count, bare, careful in (
            (
                "shards",
                args.samples,
                lambda: bare_shards(folder, tokenizer),
                lambda: our_shards(folder, tokenizer),
            ),
            (
                "zero-shot",
                args.images,
                lambda: bare_zero_shot(theirs, transform, tokenizer, folder),
                lambda: our_zero_shot(ours, folder),
            ),
        ):
            times, values = {"bare": [], "careful": []}, set()
            for _ in range(args.rounds):
                for kind, call in (("bare", bare), ("careful", careful)):
                    seconds, value = cpu_seconds(call)
                    times[kind].append(seconds)
                    values.add(round(value, 6))
            assert len(values) == 1, (part, values)  # the same samples, the same accuracy
            best = {kind: min(seconds) for kind, seconds in times.items()}
            speeds = {kind: count / seconds for kind, seconds in best.items()}
            rows.append((part, count, *speeds.values(), speeds["careful"] / speeds["bare"]))
    columns = ["what", "items", "bare, items a CPU s", "hypvl, items a CPU s", "times"]
    print(pd.DataFrame(rows, columns=columns).round(2).to_string(index=False))
