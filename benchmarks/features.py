#!/usr/bin/env python
"""Speed of feature extraction, and memory of training on a million pairs of features.

    OMP_NUM_THREADS=2 python benchmarks/features.py extraction
    OMP_NUM_THREADS=2 python benchmarks/features.py memory

`extraction`: `hypvl.features.extract` against a bare loop, which decodes with torchvision in as
many processes, resizes tensors and calls the network under `inference_mode`. Both sides encode the
same JPEG files with one timm network of random weights. Each side keeps its best batch size of
`--sizes`, best of `--repeats`, the sides in turn, because the machine may be shared. Where it is
busy, `--clock cpu` with one thread counts seconds of the processors, reading processes included.

`memory`: a store of `--pairs` pairs of `--width` features, and `--steps` updates of PHyCLIP's heads
on it. The peak of anonymous memory (`RssAnon`) is that of the whole training process, torch
included. Pages of memory-mapped files do not count: the system drops them when it needs memory.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.io import decode_image
from torchvision.transforms import v2

from hypvl.data.photographs import Photograph
from hypvl.features import Encoder, FeatureStore, extract, load_encoder


def write_pictures(folder, count):
    "JPEG files of 500 x 375 pixels with smooth content."
    rng = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(folder / f"{number}.jpg")
    return [folder / f"{number}.jpg" for number in range(count)]


class Letters(nn.Module):
    def forward(self, codes):
        return codes


def letters(texts):
    return torch.tensor([[float(len(text)), 1.0] for text in texts])


class Decoded(Dataset):
    "Pictures as the bare loop reads them."

    def __init__(self, files, size):
        self.files = files
        self.steps = v2.Compose(
            [
                v2.Resize((size, size), v2.InterpolationMode.BICUBIC, antialias=True),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.5] * 3, [0.5] * 3),
            ]
        )

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return self.steps(decode_image(str(self.files[index])))


@torch.inference_mode()
def bare_loop(network, files, size, batch_size, workers):
    "Features of all files."
    loader = DataLoader(Decoded(files, size), batch_size, num_workers=workers)
    return torch.cat([network(pixels) for pixels in loader])


def clock(kind):
    "Seconds: of a wall clock, or of all processors for this process and its readers."
    if kind == "wall":
        return time.perf_counter()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measure_extraction(args):
    "Pictures per second of both sides."
    with tempfile.TemporaryDirectory() as box:
        folder = Path(box)
        files = write_pictures(folder, args.pictures)
        network = timm.create_model(args.network, num_classes=0).eval()
        save_file(network.state_dict(), folder / "network.safetensors")
        image = load_encoder(f"timm:{args.network}/{folder}/network.safetensors")
        text = Encoder("letters", text=Letters(), tokenize=letters)
        size = timm.data.resolve_data_config({}, model=network)["input_size"][-1]
        network = network.to(memory_format=torch.channels_last)
        photographs = [Photograph(p.name, p, captions=(p.name,)) for p in files]
        best: dict[str, dict[int, float]] = {"extract": {}, "bare loop": {}}
        for repeat in range(args.repeats):
            for batch_size in args.sizes:
                out = folder / f"store-{repeat}-{batch_size}"
                sides = {
                    "extract": lambda: extract(
                        photographs, image, text, out, batch_size, args.workers, progress=False
                    ),
                    "bare loop": lambda: bare_loop(network, files, size, batch_size, args.workers),
                }
                for name, work in sides.items():
                    start = clock(args.clock)
                    work()
                    speed = len(files) / (clock(args.clock) - start)
                    best[name][batch_size] = max(speed, best[name].get(batch_size, 0))
                    print(
                        f"{name:10} batch {batch_size:3} {speed:7.2f} pictures per second",
                        flush=True,
                    )
        top = {name: max(speeds.values()) for name, speeds in best.items()}
        print(f"extract {top['extract']:.2f}, bare loop {top['bare loop']:.2f} pictures per second")
        print(f"ratio {top['extract'] / top['bare loop']:.3f}, target 0.95")


def write_random(path, rows, width):
    "A file of random features, written in pieces."
    rng = np.random.default_rng(0)
    shape = (rows, width)
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=shape)
    for first in range(0, rows, 65536):
        last = min(first + 65536, rows)
        out[first:last] = rng.standard_normal((last - first, width), dtype=np.float32)
    out.flush()


class AnonymousMemory(threading.Thread):
    "The peak of this process's anonymous memory in MiB, looked at every 10 ms."

    def __init__(self):
        super().__init__(daemon=True)
        self.peak, self.start_value = 0.0, self.now()

    def now(self):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

    def run(self):
        while True:
            self.peak = max(self.peak, self.now())
            time.sleep(0.01)


def train_once(args):
    "Train heads on the store, and print the peak of anonymous memory as JSON."
    memory = AnonymousMemory()
    memory.start()
    from hypvl.papers.feature_recipes import on_features
    from hypvl.papers.recipe_names import find_recipe
    from hypvl.papers.runs import train

    settings = {"objective.boxes": False, "train.steps": args.steps, "train.batch_size": args.batch}
    recipe = on_features(find_recipe("phyclip:phyclip", "mini", overrides=settings), args.store)
    imported = memory.peak
    with tempfile.TemporaryDirectory() as out:
        start = time.perf_counter()
        data = recipe.data.prepare(out, 0)
        train(recipe, data, Path(out) / "run", "cpu", progress=False)
        seconds = time.perf_counter() - start
    found = {"peak_mib": memory.peak, "imported_mib": imported, "seconds": seconds}
    print(json.dumps(found), flush=True)


def measure_memory(args):
    "Write a store in this process, train in another."
    with tempfile.TemporaryDirectory(dir=args.folder) as box:
        folder = Path(box)
        for side in ("image", "text"):
            write_random(folder / f"{side}.npy", args.pairs, args.width)
        memory = AnonymousMemory()
        memory.start()
        start = time.perf_counter()
        FeatureStore.from_arrays(folder / "store", folder / "image.npy", folder / "text.npy")
        seconds = time.perf_counter() - start
        print(f"store written in {seconds:.0f} s, peak anonymous memory {memory.peak:.0f} MiB")
        command = [sys.executable, __file__, "train", "--store", str(folder / "store")]
        command += ["--steps", str(args.steps), "--batch", str(args.batch)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = json.loads(said.splitlines()[-1])
    print(f"{args.pairs:,} pairs x {args.width}, {args.steps} updates of {args.batch}:")
    print(
        f"peak anonymous memory {found['peak_mib']:.0f} MiB (after imports "
        f"{found['imported_mib']:.0f}), target 1,024; {found['seconds']:.0f} s"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", choices=("extraction", "memory", "train"))
    parser.add_argument("--network", default="tf_efficientnet_lite0")
    parser.add_argument("--pictures", type=int, default=256)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--folder", help="for the store of part memory, some 6 GB")
    parser.add_argument("--store", help="of part train")
    args = parser.parse_args()
    parts = {"extraction": measure_extraction, "memory": measure_memory, "train": train_once}
    parts[args.part](args)


if __name__ == "__main__":
    main()
