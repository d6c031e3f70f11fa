"""Lay out Tiny ImageNet as sprites for the world in real pixels.

    python benchmarks/real_pixels.py --tiny tiny_imagenet --is_a imagenet_is_a.txt --out runs/sprites
    papermill papers_repro/phyclip.ipynb out.ipynb -p preset mini -p sprites runs/sprites -p out runs/real_pixels

Reads `train.tar` and `val.tar` (the published layout), the is-a edges (`parent child` a line) and `words.txt`, crops every
photograph to its box, and writes `train/<wnid>/`, `val/<wnid>/`, `taxonomy.is_a.txt` and `names.tsv`.
"""

import argparse
import io
import tarfile
from pathlib import Path

from PIL import Image
from tqdm import tqdm


def save(data: bytes, box: list[int], path: Path, margin: float = 0.1) -> None:
    "Crop to the box with a margin and save."
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.open(io.BytesIO(data)).convert("RGB")
    x1, y1, x2, y2 = box
    dx, dy = margin * (x2 - x1), margin * (y2 - y1)
    corners = (
        max(0, int(x1 - dx)),
        max(0, int(y1 - dy)),
        min(image.width, int(x2 + dx) + 1),
        min(image.height, int(y2 + dy) + 1),
    )
    image.crop(corners).save(path, quality=95)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("tiny", "is_a", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    for split in ("train", "val"):
        with tarfile.open(args.tiny / f"{split}.tar") as tar:
            files = {m.name: tar.extractfile(m).read() for m in tar if m.isfile()}
        boxes = {}  # file name -> class, box
        for name, data in files.items():
            if name.endswith("_boxes.txt"):
                wnid = Path(name).parent.name
                boxes |= {
                    row[0]: (wnid, [int(v) for v in row[1:5]])
                    for row in map(str.split, data.decode().splitlines())
                    if row
                }
            if name.endswith("val_annotations.txt"):
                boxes |= {
                    row[0]: (row[1], [int(v) for v in row[2:6]])
                    for row in map(str.split, data.decode().splitlines())
                    if row
                }
        pictures = {Path(n).name: d for n, d in files.items() if n.endswith(".JPEG")}
        for name, data in tqdm(pictures.items(), desc=split):
            wnid, box = boxes[name]
            save(data, box, args.out / split / wnid / f"{Path(name).stem}.jpg")
    (args.out / "taxonomy.is_a.txt").write_text(args.is_a.read_text())
    names = dict(
        line.split("\t", 1)
        for line in (args.tiny / "words.txt").read_text().splitlines()
        if "\t" in line
    )
    synsets = args.is_a.with_name("synsets.csv")
    if synsets.exists():
        import pandas as pd

        table = pd.read_csv(synsets)
        names = dict(zip(table.iloc[:, 0], table.iloc[:, 1].astype(str))) | names
    first = lambda lemmas: (
        lemmas.split(",")[0].split(";")[0].split("|")[0].strip().replace("_", " ")
    )
    (args.out / "names.tsv").write_text("".join(f"{n}\t{first(w)}\n" for n, w in names.items()))


if __name__ == "__main__":
    main()
