#!/usr/bin/env python
"""Lay out Tiny ImageNet as sprites for the world in real pixels.

    python benchmarks/real_pixels.py --tiny tiny_imagenet --is_a imagenet_is_a.txt --out sprites
    papermill papers_repro/phyclip.ipynb out.ipynb -p preset mini -p sprites sprites -p out runs/x

Reads `train.tar` and `val.tar` (the published layout), the is-a edges (`parent child` a line) and
`words.txt`, crops every photograph to its box, and writes `train/<wnid>/`, `val/<wnid>/`,
`taxonomy.is_a.txt` and `names.tsv`. A `synsets.csv` beside the edges names the inner nodes.
"""

import argparse
import csv
import io
import re
import tarfile
from pathlib import Path

from PIL import Image
from tqdm import tqdm

Box = tuple[str, list[int]]  # class; left, top, right, bottom


def save_crop(data: bytes, box: list[int], path: Path, margin: float = 0.1) -> None:
    "Crop to the box with a margin and save."
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.open(io.BytesIO(data)).convert("RGB")
    left, top, right, bottom = box
    dx, dy = margin * (right - left), margin * (bottom - top)
    corners = (
        max(0, int(left - dx)),
        max(0, int(top - dy)),
        min(image.width, int(right + dx) + 1),
        min(image.height, int(bottom + dy) + 1),
    )
    image.crop(corners).save(path, quality=95)


def read_tar(path: Path) -> dict[str, bytes]:
    "All files of a tar by name."
    files = {}
    with tarfile.open(path) as tar:
        for member in tar:
            stream = tar.extractfile(member)
            if stream is not None:
                files[member.name] = stream.read()
    return files


def read_boxes(files: dict[str, bytes]) -> dict[str, Box]:
    "Class and box of every picture: a table a class in train, one table in val."
    boxes = {}
    for name, data in files.items():
        if not name.endswith(("_boxes.txt", "val_annotations.txt")):
            continue
        for line in data.decode().splitlines():
            words = line.split()
            if not words:
                continue
            if name.endswith("_boxes.txt"):
                picture, wnid, corners = words[0], Path(name).parent.name, words[1:5]
            else:
                picture, wnid, corners = words[0], words[1], words[2:6]
            boxes[picture] = wnid, [int(corner) for corner in corners]
    return boxes


def read_names(words: Path, synsets: Path) -> dict[str, str]:
    "First name of every node; `words` wins over `synsets`."
    lemmas = {}
    if synsets.exists():
        with synsets.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            next(rows)  # the header
            for wnid, names, *_ in rows:
                lemmas[wnid] = names
    for line in words.read_text().splitlines():
        wnid, tab, names = line.partition("\t")
        if tab:
            lemmas[wnid] = names
    return {wnid: re.split("[,;|]", names)[0] for wnid, names in lemmas.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("tiny", "is_a", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    for split in ("train", "val"):
        files = read_tar(args.tiny / f"{split}.tar")
        boxes = read_boxes(files)
        pictures = [name for name in files if name.endswith(".JPEG")]
        for name in tqdm(pictures, desc=split):
            wnid, box = boxes[Path(name).name]
            save_crop(files[name], box, args.out / split / wnid / f"{Path(name).stem}.jpg")
    (args.out / "taxonomy.is_a.txt").write_text(args.is_a.read_text())
    names = read_names(args.tiny / "words.txt", args.is_a.with_name("synsets.csv"))
    lines = [f"{wnid}\t{name.strip().replace('_', ' ')}\n" for wnid, name in names.items()]
    (args.out / "names.tsv").write_text("".join(lines))


if __name__ == "__main__":
    main()
