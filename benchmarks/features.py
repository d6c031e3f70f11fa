#!/usr/bin/env python
"""Speed of feature extraction.

    OMP_NUM_THREADS=2 python benchmarks/features.py

`hypvl.features.extract` against a bare loop, which decodes with torchvision in as
many processes, resizes tensors and calls the network under `inference_mode`. Both sides encode the
same JPEG files with one timm network of random weights. Each side keeps its best batch size of
`--sizes`, best of `--repeats`, the sides in turn, because the machine may be shared. Each
measurement has a process of its own: one that has freed memory before is slower. On a busy
machine `--clock cpu` with one thread counts seconds of the processors, reading processes included.
"""

import argparse
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.io import decode_image
from torchvision.transforms import v2

from hypvl.data.photographs import Photograph
from hypvl.features import Encoder, extract, load_encoder
from hypvl.features.extraction import keep_freed_memory


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


def measure_side(side, args, folder, batch_size, repeat):
    "Pictures per second of a side."
    keep_freed_memory()  # `extract` does so; the bare loop gains as much
    files = [folder / f"{number}.jpg" for number in range(args.pictures)]
    weights = folder / "network.safetensors"
    if side == "extract":
        image = load_encoder(f"timm:{args.network}/{weights}")
        text = Encoder("letters", text=Letters(), tokenize=letters)
        photographs = [Photograph(p.name, p, captions=(p.name,)) for p in files]
        out = folder / f"store-{repeat}-{batch_size}"
        start = clock(args.clock)
        extract(photographs, image, text, out, batch_size, args.workers, progress=False)
    else:
        network = timm.create_model(args.network, num_classes=0).eval()
        network.load_state_dict(load_file(weights))
        size = timm.data.resolve_data_config({}, model=network)["input_size"][-1]
        network = network.to(memory_format=torch.channels_last)
        start = clock(args.clock)
        bare_loop(network, files, size, batch_size, args.workers)
    return len(files) / (clock(args.clock) - start)


def measure_extraction(args):
    "Pictures per second of both sides, each time in a process of its own."
    with tempfile.TemporaryDirectory() as box:
        folder = Path(box)
        write_pictures(folder, args.pictures)
        network = timm.create_model(args.network, num_classes=0)
        save_file(network.state_dict(), folder / "network.safetensors")
        best: dict[str, dict[int, float]] = {"extract": {}, "bare loop": {}}
        context = get_context("spawn")
        for repeat in range(args.repeats):
            for batch_size in args.sizes:
                for side, speeds in best.items():
                    with ProcessPoolExecutor(1, context) as fresh:
                        job = fresh.submit(measure_side, side, args, folder, batch_size, repeat)
                        speed = job.result()
                    speeds[batch_size] = max(speed, speeds.get(batch_size, 0))
                    print(
                        f"{side:10} batch {batch_size:3} {speed:7.2f} pictures per second",
                        flush=True,
                    )
        top = {name: max(speeds.values()) for name, speeds in best.items()}
        print(f"extract {top['extract']:.2f}, bare loop {top['bare loop']:.2f} pictures per second")
        print(f"ratio {top['extract'] / top['bare loop']:.3f}, target 0.95")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--network", default="tf_efficientnet_lite0")
    parser.add_argument("--pictures", type=int, default=256)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    measure_extraction(parser.parse_args())


if __name__ == "__main__":
    main()
