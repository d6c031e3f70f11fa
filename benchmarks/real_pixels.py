#!/usr/bin/env python
"""Lay out Tiny ImageNet as sprites for the world in real pixels.

    python benchmarks/real_pixels.py --tiny tiny_imagenet --is_a imagenet_is_a.txt --out sprites
    papermill papers_repro/phyclip.ipynb out.ipynb -p preset mini -p sprites sprites -p out runs/x

Reads `train.tar` and `val.tar` (the published layout), the is-a edges (`parent child` a line) and
`words.txt`, crops every photograph to its box, and writes `train/<wnid>/`, `val/<wnid>/`,
`taxonomy.is_a.txt` and `names.tsv`. A `synsets.csv` beside the edges names the inner nodes.

Only the classes of `real_pixels_classes.csv` are written. `--choose` makes that list: a small
convolutional net learns all classes from the crops of the training photographs, the tree is cut
into families, and of the eight that the net knows best the five classes each stay that it tells
apart best on the validation photographs (a few minutes on one core).
"""

import argparse
import csv
import io
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torchvision
from PIL import Image
from torch.nn import functional
from tqdm import tqdm

from hypvl.data.taxonomy import Taxonomy, contract, restrict
from hypvl.data.world.photographs import cut_families

CLASSES = Path(__file__).with_name("real_pixels_classes.csv")
FAMILIES, CLASSES_EACH = 8, 5
SIDE = 32  # pixels of a crop that the net sees
EPOCHS, BATCH, RATE = 10, 128, 0.1

Box = tuple[str, list[int]]  # class; left, top, right, bottom


def crop_to_box(data: bytes, box: list[int], margin: float = 0.1) -> Image.Image:
    "A photograph cut to its box with a margin."
    image = Image.open(io.BytesIO(data)).convert("RGB")
    left, top, right, bottom = box
    dx, dy = margin * (right - left), margin * (bottom - top)
    corners = (
        max(0, int(left - dx)),
        max(0, int(top - dy)),
        min(image.width, int(right + dx) + 1),
        min(image.height, int(bottom + dy) + 1),
    )
    return image.crop(corners)


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
    return {
        wnid: re.split("[,;|]", names)[0].strip().replace("_", " ")
        for wnid, names in lemmas.items()
    }


def read_crops(tiny: Path, split: str) -> Iterator[tuple[str, str, Image.Image]]:
    "Name, class and crop of every photograph of a split."
    files = read_tar(tiny / f"{split}.tar")
    boxes = read_boxes(files)
    for name in tqdm([n for n in files if n.endswith(".JPEG")], desc=split):
        wnid, box = boxes[Path(name).name]
        yield Path(name).stem, wnid, crop_to_box(files[name], box)


def read_tensors(tiny: Path, split: str, classes: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    "Crops [N, 3, SIDE, SIDE] in -1..1 and their classes' numbers [N]."
    pixels, targets = [], []
    for _, wnid, crop in read_crops(tiny, split):
        small = crop.resize((SIDE, SIDE), Image.Resampling.BOX)
        pixels.append(torch.from_numpy(np.array(small)))
        targets.append(classes.index(wnid))
    images = torch.stack(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1
    return images, torch.tensor(targets)


def small_net(classes: int) -> torch.nn.Module:
    "Six convolutions with batch norms; the side is halved four times."
    widths = [(3, 32, 2), (32, 48, 1), (48, 64, 2), (64, 96, 1), (96, 128, 2), (128, 192, 2)]
    blocks = [
        torchvision.ops.Conv2dNormActivation(here, there, stride=stride)
        for here, there, stride in widths
    ]
    pool = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Dropout(0.2)]
    return torch.nn.Sequential(*blocks, *pool, torch.nn.Linear(192, classes))


def augment(images: torch.Tensor) -> torch.Tensor:
    "The batch shifted by up to three pixels, half of its pictures mirrored."
    padded = functional.pad(images, (3, 3, 3, 3), mode="reflect")
    top, left = torch.randint(0, 7, (2,)).tolist()
    moved = padded[:, :, top : top + SIDE, left : left + SIDE]
    mirrored = torch.rand(len(images)) < 0.5
    return torch.where(mirrored[:, None, None, None], moved.flip(-1), moved)


def recall_by_class(tiny: Path, classes: list[str]) -> dict[str, float]:
    "Validation recall of each class, in the eyes of a net trained on all of them."
    torch.manual_seed(0)
    images, targets = read_tensors(tiny, "train", classes)
    net = small_net(len(classes)).to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(
        net.parameters(), RATE, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    steps = EPOCHS * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps)
    with tqdm(total=steps, desc="net") as bar:
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(images))[: BATCH * (len(images) // BATCH)].split(BATCH):
                loss = functional.cross_entropy(
                    net(augment(images[rows])), targets[rows], label_smoothing=0.1
                )
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
                bar.update()
            bar.set_postfix(loss=f"{loss.item():.2f}")
    net.eval()
    images, targets = read_tensors(tiny, "val", classes)
    with torch.no_grad():
        found = torch.cat([net(batch).argmax(1) for batch in images.split(BATCH)])
    right = (found == targets).float()
    return {name: right[targets == i].mean().item() for i, name in enumerate(classes)}


def choose_classes(tiny: Path, is_a: Path, names: dict[str, str]) -> None:
    "Write the list of classes: those that the net tells apart best, of the families it knows best."
    classes = sorted((tiny / "wnids.txt").read_text().split())
    tree = Taxonomy.from_file(is_a, parent="first")
    tree = contract(restrict(tree, classes), keep=classes)
    recall = recall_by_class(tiny, classes)
    best = {}
    for family, leaves in cut_families(tree, FAMILIES, smallest=CLASSES_EACH).items():
        best_first = sorted(leaves, key=lambda wnid: (-recall[wnid], wnid))
        best[family] = best_first[:CLASSES_EACH]
    known = sorted(best, key=lambda family: -sum(recall[wnid] for wnid in best[family]))
    with CLASSES.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["family", "wnid", "name", "recall"])
        for family in known[:FAMILIES]:
            for wnid in best[family]:
                rows.writerow([names[family], wnid, names[wnid], f"{recall[wnid]:.2f}"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("tiny", "is_a"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--out", type=Path, help="folder of the sprites")
    wanted.add_argument("--choose", action="store_true", help=f"write {CLASSES.name} anew")
    args = parser.parse_args()
    names = read_names(args.tiny / "words.txt", args.is_a.with_name("synsets.csv"))
    if args.choose:
        choose_classes(args.tiny, args.is_a, names)
        return
    with CLASSES.open(newline="", encoding="utf-8") as file:
        chosen = {row["wnid"] for row in csv.DictReader(file)}
    for split in ("train", "val"):
        for stem, wnid, crop in read_crops(args.tiny, split):
            if wnid in chosen:
                path = args.out / split / wnid / f"{stem}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                crop.save(path, quality=95)
    (args.out / "taxonomy.is_a.txt").write_text(args.is_a.read_text())
    lines = [f"{wnid}\t{name}\n" for wnid, name in names.items()]
    (args.out / "names.tsv").write_text("".join(lines))


if __name__ == "__main__":
    main()
