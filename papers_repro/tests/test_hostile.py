"""Hostile files against every reader.

Files are made well and then spoilt in ways that disks, networks and people have: cut, emptied,
reordered, of wrong types and encodings, with links, `..`, duplicates, bombs and texts of 100 kB.
Three outcomes are allowed: a right value, a counted and named skip, or an error that names the
file. `--full` tries six times as many; `test_as_many_cases` prints their number.
"""

import gzip
import io
import json
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from hypvl.data.benchmarks.annotations import (
    read_coco_captions,
    read_flickr_tokens,
    read_karpathy,
    read_sugarcrepe,
    read_vl_checklist,
)
from hypvl.data.grit.prepare import prepare_shard
from hypvl.data.grit.shards import Faults, read_shard, write_shard
from hypvl.data.pairs import find_pairs
from hypvl.data.records import parse_json, read_table
from hypvl.pictures import Refused, read_picture

CASES = Counter()  # by reader
MANY = settings(
    max_examples=300 if "--full" in sys.argv else 50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def encoded(image, kind, **how):
    buffer = io.BytesIO()
    image.save(buffer, kind, **how)
    return buffer.getvalue()


def _pictures():
    rng = np.random.default_rng(0)
    rgb = Image.fromarray(rng.integers(0, 255, (12, 9, 3), dtype=np.uint8).repeat(4, 0))
    marks = Image.Exif()
    marks[0x0112] = 6
    deep = Image.fromarray(rng.integers(0, 65535, (9, 7), dtype=np.uint16))
    films = [Image.new("RGB", (6, 6), colour) for colour in ("red", "blue")]
    rgba = rgb.convert("RGBA")
    rgba.putalpha(90)
    return [
        encoded(rgb, "JPEG"),
        encoded(rgb, "JPEG", exif=marks, progressive=True),
        encoded(rgb.convert("CMYK"), "JPEG"),
        encoded(rgb, "PNG"),
        encoded(deep, "PNG"),
        encoded(deep, "TIFF"),
        encoded(rgba, "PNG"),
        encoded(rgb.quantize(8), "PNG", transparency=b"\0\x80"),
        encoded(rgba, "WEBP", lossless=True),
        encoded(rgb, "BMP"),
        encoded(films[0], "GIF", save_all=True, append_images=films[1:]),
        encoded(rgb, "PPM"),
        encoded(rgb, "TIFF", compression="tiff_lzw"),
    ]


PICTURES = _pictures()


@st.composite
def spoilt(draw, contents):
    "Bytes that are cut, emptied, flipped, doubled or exchanged for others."
    content = bytearray(draw(st.sampled_from(contents)))
    for kind in draw(st.lists(st.sampled_from("cut flip fill insert repeat".split()), max_size=3)):
        if not content:
            break
        place = draw(st.integers(0, len(content) - 1))
        if kind == "cut":
            del content[place:]
        elif kind == "flip":
            content[place] ^= draw(st.integers(1, 255))
        elif kind == "fill":
            content[place : place + 16] = bytes(16)
        elif kind == "insert":
            content[place:place] = draw(st.binary(max_size=40))
        else:
            content[place:place] = content[: draw(st.integers(0, 600))]
    return bytes(content)


@MANY
@given(spoilt(PICTURES))
def test_pictures(content):
    CASES["pictures"] += 1
    try:
        image = read_picture(content)
    except Refused as error:
        assert error.kind in ("broken", "too large", "depth") and str(error).startswith(error.kind)
    else:
        assert image.mode == "RGB" and image.width * image.height <= 89_478_485


SAMPLES = [
    {
        "__key__": f"{i:05d}",
        "jpg": PICTURES[0],
        "json": json.dumps(
            {"caption": f"a dog number {i}", "noun_chunks": [[0, 5, 0, 0, 1, 1, 1]]}
        ),
        "txt": f"a dog number {i}",
    }
    for i in range(6)
]
FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


def tar_of(members, form=tarfile.USTAR_FORMAT, end=1024):
    "A tar of (name, content, kind, link)."
    parts = []
    for name, content, kind, link in members:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, link, len(content)
        parts.append(info.tobuf(form, "utf-8", "surrogateescape"))
        parts.append(content + bytes(-len(content) % 512))
    return b"".join(parts) + bytes(end)


def members_of(samples):
    rows = []
    for sample in samples:
        for suffix in ("jpg", "json", "txt"):
            content = sample[suffix]
            content = content.encode() if isinstance(content, str) else content
            rows.append((f"{sample['__key__']}.{suffix}", content, tarfile.REGTYPE, ""))
    return rows


NAMES = [
    "../../evil.jpg",
    "/etc/evil.jpg",
    "a/../../b.jpg",
    "\n.jpg",
    "e\udcff.jpg",
    "n/" * 60 + "n" * 60,
]
STRANGE = [(name, b"x", tarfile.REGTYPE, "") for name in NAMES]
STRANGE += [("00009.jpg", b"", kind, "/etc/passwd") for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE)]
STRANGE += [("00009.fifo", b"", tarfile.FIFOTYPE, ""), ("folder/", b"", tarfile.DIRTYPE, "")]


@st.composite
def tars(draw):
    "A tar of six samples with strange members, reordered, doubled, compressed or spoilt."
    rows = members_of(SAMPLES)
    for row in draw(st.lists(st.sampled_from(STRANGE), max_size=2)):
        rows.insert(draw(st.integers(0, len(rows))), row)
    if draw(st.booleans()):
        rows = draw(st.permutations(rows))
    if draw(st.booleans()):
        rows.insert(0, draw(st.sampled_from(rows)))
    content = tar_of(rows, draw(st.sampled_from(FORMATS)), draw(st.sampled_from((0, 512, 1024))))
    if draw(st.booleans()):
        content = gzip.compress(content, 1)
    return draw(spoilt([content])) if draw(st.booleans()) else content


@MANY
@given(content=tars())
def test_tars(tmp_path_factory, content):
    CASES["tars"] += 1
    path = tmp_path_factory.getbasetemp() / "00000.tar"
    path.write_bytes(content)
    faults = Faults()
    read = list(read_shard(str(path), faults.add))
    for sample in read:
        assert ".." not in Path(sample["__key__"]).parts and sample["__key__"][0] != "/"
    assert all("00000.tar" in line for line in faults.lines)
    whole = [s for s in read if {"jpg", "json", "txt"} <= {*s}]
    assert len(whole) == len(SAMPLES) or len(read) > len(whole) or faults.lines or len(read) == 6


@MANY
@given(place=st.integers(0, len(tar_of(members_of(SAMPLES))) - 1025), form=st.sampled_from(FORMATS))
def test_cut_tars_lose_nothing_silently(tmp_path_factory, place, form):
    "Whatever stands before the cut is read unchanged, and the cut is named."
    CASES["cut tars"] += 1
    path = tmp_path_factory.getbasetemp() / "00001.tar"
    path.write_bytes(tar_of(members_of(SAMPLES), form)[:place])
    faults = Faults()
    read = list(read_shard(str(path), faults.add))
    assert faults.counts == {"broken shard": 1}, faults.lines
    for sample, wanted in zip(read, SAMPLES):
        for suffix in {*sample} - {"__key__", "__url__"}:
            content = wanted[suffix]
            assert sample[suffix] == (content.encode() if isinstance(content, str) else content)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["\ud800", "../../x.jpg", "/x.jpg", "a\0b", "x" * 300, "a\u2028b", "1.jpg"])
    | st.just("word " * 20_000),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def changed(draw, value, depth=0):
    "A JSON value of which some part is another thing, or is gone."
    choice = draw(st.integers(0, 7 if depth else 3))
    if choice == 7:
        return draw(ANYTHING)
    if isinstance(value, dict):
        keys = [key for key in value if draw(st.integers(0, 12))]
        return {key: draw(changed(value[key], depth + 1)) for key in keys}
    if isinstance(value, list):
        rows = [draw(changed(row, depth + 1)) for row in value if draw(st.integers(0, 12))]
        return rows + rows[:1] if draw(st.integers(0, 9)) == 9 else rows
    return value


META = {
    "caption": "a dog on a bed",
    "noun_chunks": [[0, 5, 0.0, 0.0, 1.0, 1.0, 0.9], [9, 14, 0.1, 0.2, 0.8, 0.9, 0.9]],
    "ref_exps": [[0, 14, 0.0, 0.0, 1.0, 0.5, 0.9]],
}


@MANY
@given(metas=st.lists(changed(META), min_size=2, max_size=3), image=spoilt(PICTURES[:4]))
def test_preparation(tmp_path_factory, metas, image):
    "Every raw sample is kept, has no box left, or is counted as a fault and named."
    CASES["raw shards"] += 1
    folder = tmp_path_factory.mktemp("raw")
    rows = [SAMPLES[0]] + [
        {"__key__": f"{i:05d}", "jpg": image if i == 1 else PICTURES[0], "json": json.dumps(meta)}
        for i, meta in enumerate(metas, 1)
    ]
    write_shard(folder / "raw.tar", rows)
    counts, lines = prepare_shard(str(folder / "raw.tar"), folder / "00000.tar")
    faults = sum(n for name, n in counts.items() if name.startswith("faults: "))
    done = sum(counts.get(f"samples: {name}", 0) for name in ("kept", "no box left"))
    assert counts["samples: raw"] == len(rows) == done + faults, (counts, lines)
    assert len(lines) == faults and all("raw.tar sample" in line for line in lines)
    assert len(list(read_shard(str(folder / "00000.tar")))) == counts.get("samples: kept", 0)


KARPATHY = {
    "images": [
        {
            "filename": f"{i}.jpg",
            "filepath": "val",
            "split": "test",
            "sentences": [{"raw": "a dog"}],
        }
        for i in range(3)
    ]
}
COCO = {
    "images": [{"id": i, "file_name": f"{i}.jpg"} for i in range(3)],
    "annotations": [{"image_id": i, "caption": f"dog {i}"} for i in range(3)],
}
CHECKLIST = [[f"{i}.jpg", {"POS": ["a dog"], "NEG": ["a cat"]}] for i in range(3)]
CREPE = {
    str(i): {"filename": f"{i}.jpg", "caption": "a dog", "negative_caption": "a cat"}
    for i in range(3)
}
READERS = {
    "karpathy.json": (read_karpathy, KARPATHY),
    "coco.json": (read_coco_captions, COCO),
    "checklist.json": (read_vl_checklist, CHECKLIST),
    "crepe.json": (read_sugarcrepe, CREPE),
}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for name in ("0.jpg", "1.jpg", "val/0.jpg", "val/2.jpg"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(PICTURES[0])
    return folder


def check_records(read, path, images):
    "Paths that exist below the folder of images and texts that can be written, or a named error."
    try:
        data = read(path, images)
    except (ValueError, FileNotFoundError) as error:
        assert path.name in str(error) or str(error).startswith("split: "), error
        assert len(str(error)) < 1000
        return
    assert all(place.is_file() and place.is_relative_to(images) for place in data.paths)
    texts = [
        text for name in ("captions", "positive", "negative") for text in vars(data).get(name, ())
    ]
    assert all(isinstance(text, str) and text.encode() is not None for text in texts)


@pytest.mark.parametrize("name", READERS)
@MANY
@given(data=st.data())
def test_json(images, name, data):
    CASES["JSON"] += 1
    read, value = READERS[name]
    text = json.dumps(data.draw(changed(value)))
    if data.draw(st.integers(0, 3)) == 0:
        content = data.draw(
            spoilt([text.encode(), text.encode("utf-16"), text.encode("utf-8-sig")])
        )
    else:
        content = text.encode()
    path = images.parent / name
    path.write_bytes(content)
    check_records(read, path, images)


@MANY
@given(data=st.data())
def test_deep_and_doubled_json(data):
    CASES["JSON"] += 1
    text = data.draw(
        st.sampled_from(['{"a": 1, "a": 2}', "[" * 200_000, '{"a":' * 60_000, "1e999", "NaN", ""])
        | st.text(alphabet='[]{}",:0 a\\u2028', max_size=40)
    )
    try:
        parse_json(text)
    except ValueError:
        pass


ROWS = st.lists(
    st.lists(
        st.text(max_size=6)
        | st.sampled_from(["0.jpg", '"', 'a "b"', "a\u2028b", "\r", "../x.jpg", "x" * 100_000]),
        max_size=4,
    ),
    max_size=4,
)


@MANY
@given(
    rows=ROWS,
    head=st.sampled_from(["image,caption", "caption,image,more", "image", ""]),
    tail=st.binary(max_size=3),
)
def test_tables(images, rows, head, tail):
    "Whole rows, or an error with file and line: never fewer rows than were written."
    CASES["CSV"] += 1
    path = images / "pairs.csv"
    text = "\n".join([head, *(",".join(row) for row in rows)]) + "\n"
    path.write_bytes(text.encode("utf-8", "replace") + tail)
    for read in (lambda: find_pairs(path).check(), lambda: read_table(path, ("image", "caption"))):
        try:
            found = read()
        except (ValueError, FileNotFoundError) as error:
            assert "pairs.csv" in str(error), error
        else:
            assert all(len(row) == 2 for row in found)


@MANY
@given(
    content=spoilt(["".join(f"{i}.jpg#{k}\ta dog\n" for i in range(3) for k in range(2)).encode()])
)
def test_token_lists(images, content):
    CASES["lines"] += 1
    path = images.parent / "results.token"
    path.write_bytes(content)
    check_records(read_flickr_tokens, path, images)


BOMBS = """
import gzip, io, resource, struct, sys, tarfile, zlib
from pathlib import Path
from hypvl.data.grit.shards import Faults, read_shard
from hypvl.pictures import Refused, read_picture

root = Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


for side in (24_000, 60_000):
    head = struct.pack(">2I5B", side, side, 1, 0, 0, 0, 0)
    body = zlib.compress(bytes(side // 8 + 1) * 200)
    png = b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body)
    png += chunk(b"IEND", b"")
    try:
        read_picture(png)
        raise SystemExit("a bomb was decoded")
    except Refused as error:
        assert error.kind == "too large", error
info = tarfile.TarInfo("00000.jpg")
info.size = 2**40
claims = info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)
large = tarfile.TarInfo("00000.jpg")
large.size = 2**30
squeezed = zlib.compressobj(1, wbits=31)
with open(root / "large.tar", "wb") as file:
    file.write(squeezed.compress(large.tobuf(tarfile.GNU_FORMAT)))
    for _ in range(64):
        file.write(squeezed.compress(bytes(2**24)))
    file.write(squeezed.compress(bytes(1024)) + squeezed.flush())
(root / "claims.tar").write_bytes(claims)
for name in ("large", "claims"):
    faults = Faults()
    assert list(read_shard(root / f"{name}.tar", faults.add)) == [], name
    assert faults.counts["too large"] == 1, faults.lines
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
assert grown < 300, f"{grown:.0f} MB"
print(f"{grown:.0f} MB")
"""


def test_bombs_do_not_fill_the_memory(tmp_path):
    "Pictures of half a gigapixel, members of a gigabyte in a megabyte, and of a claimed terabyte."
    CASES["bombs"] += 4
    done = subprocess.run(
        [sys.executable, "-c", BOMBS, str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_as_many_cases():
    "Runs last: how many files were tried."
    print(dict(CASES))
    if set(CASES) >= {"pictures", "tars", "cut tars", "raw shards", "JSON", "CSV", "lines"}:
        assert sum(CASES.values()) >= (3000 if "--full" in sys.argv else 500), CASES
