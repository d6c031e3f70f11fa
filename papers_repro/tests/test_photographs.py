"""Readers of photographs: on generated annotation files, and on the data pack (HYPVL_DATA)."""

import csv
import os
import shutil
import tarfile
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hypvl.data.flickr import (
    read_entity_boxes,
    read_flickr8k,
    read_flickr30k_entities,
    read_sentence,
)
from hypvl.data.hierarcaps import read_expanded_chains, read_hierarcaps
from hypvl.data.own_data import unreadable_pictures
from hypvl.data.photographs import Photograph, photographs
from hypvl.evaluation.hierarcaps import length_oracles, word_counts
from hypvl.features.store_folds import parts_of
from hypvl.papers.h2em.metadata import read_compositions
from hypvl.papers.h2em.splits import read_split
from hypvl.papers.visual_hierarchies.photograph_hierarchies import phrase_head

few = settings(max_examples=40, deadline=None)
letters = st.characters(exclude_categories=("C", "Z"), exclude_characters="[]/#\"'")
words = st.lists(st.text(letters, min_size=1, max_size=6), min_size=1, max_size=4).map(" ".join)
numbers = st.integers(-3, 60)
types = st.lists(st.sampled_from(["people", "scene", "other"]), min_size=1, max_size=2)
phrases = st.tuples(st.integers(1, 4).map(str), types.map("/".join), words)
captions = st.lists(words | phrases, min_size=1, max_size=5)


def draw(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), "red").save(path)
    return path


def marked(parts) -> str:
    "A caption in the layout of Sentences/."
    words = [part if isinstance(part, str) else "[/EN#{}/{} {}]".format(*part) for part in parts]
    return " ".join(words)


def xml_of(width, height, objects) -> str:
    "An annotation in the layout of Annotations/."
    lines = ["<annotation>", f"<size><width>{width}</width><height>{height}</height></size>"]
    for names, (x1, y1, x2, y2) in objects:
        lines.append("<object>" + "".join(f"<name>{name}</name>" for name in names))
        lines.append(f"<bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin>")
        lines.append(f"<xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox></object>")
    return "\n".join([*lines, "</annotation>"])


@few
@given(captions)
def test_a_sentence_keeps_its_words_and_phrases(parts):
    caption, found = read_sentence(marked(parts))
    assert caption == " ".join(part if isinstance(part, str) else part[2] for part in parts)
    wanted = [part for part in parts if not isinstance(part, str)]
    assert [(each.entity, each.type, each.phrase) for each in found] == wanted


@few
@given(
    width=st.integers(1, 50),
    height=st.integers(1, 50),
    objects=st.lists(
        st.tuples(
            st.lists(st.integers(1, 4).map(str), min_size=1, max_size=2, unique=True),
            st.tuples(numbers, numbers, numbers, numbers),
        ),
        max_size=6,
    ),
    sentences=st.lists(captions, min_size=1, max_size=5),
)
def test_every_phrase_is_boxed_or_counted(width, height, objects, sentences):
    "The pairs of box and phrase, and the faults, against loops over what was generated."
    pairs, faults = [], Counter()
    for _, (x1, y1, x2, y2) in objects:
        inside = 0 <= x1 <= width and 0 <= x2 <= width and 0 <= y1 <= height and 0 <= y2 <= height
        faults["box outside"] += not inside
        faults["box of zero area"] += inside and not (x1 < x2 and y1 < y2)
    for owner, parts in enumerate(sentences):
        for part in parts:
            if isinstance(part, str):
                continue
            entity, kind, phrase = part
            before = len(pairs)
            for names, (x1, y1, x2, y2) in objects:
                if entity in names and 0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height:
                    box = (x1 / width, y1 / height, x2 / width, y2 / height)
                    pairs.append((box, phrase, owner, kind))
            faults["phrase without box"] += len(pairs) == before
    with TemporaryDirectory() as folder:
        root = Path(folder)
        for name, content in (
            ("Annotations/7.xml", xml_of(width, height, objects)),
            ("Sentences/7.txt", "\n".join(map(marked, sentences))),
        ):
            (root / name).parent.mkdir()
            (root / name).write_text(content, encoding="utf-8")
        given_photograph = Photograph("7_a.jpg", draw(root / "7_a.jpg"), "val", ["A dog ."])
        (found,) = read = read_flickr30k_entities(root, [given_photograph])
    assert list(zip(found.boxes, found.phrases, found.owners, found.types)) == pairs
    assert (found.id, found.split, len(found.captions)) == ("7_a.jpg", "val", len(sentences))
    assert Counter(kind for kind, *_ in read.faults) == +faults


@few
@given(st.data())
def test_a_cut_annotation_is_an_error(data):
    whole = xml_of(30, 20, [(["1"], (1, 1, 9, 9)), (["2", "3"], (2, 2, 30, 20))])
    cut = data.draw(st.integers(0, len(whole) - 1))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "7.xml"
        path.write_text(whole)
        assert len(read_entity_boxes(path)) == 2
        path.write_text(whole[:cut])
        with pytest.raises(ValueError, match="7.xml is no annotation: "):
            read_entity_boxes(path)


def damaged(data, content: bytes) -> bytes:
    "A file with a stretch of it replaced by other bytes."
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, len(content)))
    return content[:start] + data.draw(st.binary(max_size=8)) + content[end:]


@few
@given(st.data())
def test_damaged_annotations_are_counted_or_clear_errors(data):
    "Whatever the bytes: the photograph keeps its place, or a ValueError or FileNotFoundError."
    sentence = "[/EN#1/people A man] runs .\nHe [/EN#1/people stops] ."
    chain = "dog => black dog => a black dog => A black dog runs ."
    with TemporaryDirectory() as folder:
        root = Path(folder)
        xml = xml_of(30, 20, [(["1"], (1, 1, 9, 9))]).encode()
        for name, content in (
            ("Annotations/7.xml", xml),
            ("Sentences/7.txt", sentence.encode()),
            ("Flickr8k.token.txt", b"7.jpg#0\tA man runs ."),
            ("Flickr_8k.trainImages.txt", b"7.jpg\n"),
            ("Flickr_8k.devImages.txt", b""),
            ("Flickr_8k.testImages.txt", b""),
            ("hierarcaps_test.csv", f"id,captions,image_url\n0,{chain},http://a/7.jpg".encode()),
        ):
            path = draw(root / "images" / "7.jpg") and root / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(damaged(data, content))
        one = Photograph("7.jpg", root / "images/7.jpg", captions=["A man ."])
        for read in (read_flickr8k, read_hierarcaps):
            try:
                assert len(read(root)) <= 1
            except (ValueError, FileNotFoundError) as error:
                assert str(error)
        read = read_flickr30k_entities(root, [one])
        assert len(read) == 1 or read.faults


@few
@given(
    st.lists(
        st.tuples(st.lists(words | st.just(" "), min_size=1, max_size=3), st.integers(0, 3)),
        min_size=1,
        max_size=6,
    )
)
def test_flickr8k_keeps_every_caption_and_split(entries):
    "Captions with a word, in order, with the split of the list that names the photograph."
    lists = ("train", "dev", "test")
    with TemporaryDirectory() as folder:
        root, lines, named = Path(folder), [], {name: [] for name in lists}
        for number, (texts, place) in enumerate(entries):
            name = draw(root / "Images" / f"{number}.jpg").name
            lines += [f"{name}#{index}\t{text}" for index, text in enumerate(texts)]
            if place < len(lists):
                named[lists[place]].append(name)
        (root / "Flickr8k.token.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        for name, files in named.items():
            (root / f"Flickr_8k.{name}Images.txt").write_text("\n".join(files))
        found = read_flickr8k(root)
    wanted, blank, empty = {}, 0, 0
    for number, (texts, place) in enumerate(entries):
        kept = tuple(text for text in texts if text.strip())
        blank += len(texts) - len(kept)
        empty += not kept
        if kept:
            wanted[f"{number}.jpg"] = (("train", "val", "test", "restval")[place], kept)
    assert {each.id: (each.split, each.captions) for each in found} == wanted
    counted = Counter(kind for kind, *_ in found.faults)
    assert counted == +Counter({"empty caption": blank, "no caption": empty})


@few
@given(st.lists(st.lists(words, min_size=1, max_size=6), min_size=1, max_size=5))
def test_hierarcaps_keeps_chains_of_four(chains):
    with TemporaryDirectory() as folder:
        root, rows = Path(folder), [("id", "captions", "image_url")]
        for number, chain in enumerate(chains):
            draw(root / "test_imgs" / f"{number}.jpg")
            rows.append((number, " => ".join(chain), f"http://images.org/val2014/{number}.jpg"))
        with open(root / "hierarcaps_test.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
        found = read_hierarcaps(root)
    wanted = {f"{n}.jpg": tuple(chain) for n, chain in enumerate(chains) if len(chain) == 4}
    assert {each.id: each.captions for each in found} == wanted
    assert [kind for kind, *_ in found.faults] == ["broken chain"] * (len(chains) - len(wanted))


@pytest.fixture(scope="module")
def pack(tmp_path_factory) -> Path:
    "The archives of the data pack, unpacked."
    data, out = Path(os.environ["HYPVL_DATA"]), tmp_path_factory.mktemp("pack")
    for archive, folder in (
        ("flickr8k/images.tar", "flickr"),
        ("flickr8k/text.tar.gz", "flickr"),
        ("flickr30k_entities/annotations.tar.xz", "flickr"),
        ("hierarcaps/images.tar", "hierarcaps"),
        ("fashion/fashion.tar", "fashion"),
    ):
        with tarfile.open(data / archive) as tar:
            tar.extractall(out / folder, filter="data")
    for path in (data / "hierarcaps").glob("*.csv*"):
        shutil.copy(path, out / "hierarcaps")
    return out


@pytest.mark.data
def test_flickr8k_of_the_pack(pack, tmp_path):
    found = read_flickr8k(pack / "flickr")
    assert Counter(each.split for each in found) == dict(
        train=6000, val=1000, test=1000, restval=91
    )
    assert sum(len(each.captions) for each in found) == 40_455 and not found.faults
    (tmp_path / "Images").symlink_to(pack / "flickr/Flicker8k_Dataset")
    shutil.copy(pack / "flickr/dataset_flickr8k.json", tmp_path)
    same = {each.id: (each.split, each.captions) for each in read_flickr8k(tmp_path)}
    assert same == {each.id: (each.split, each.captions) for each in found}


@pytest.mark.data
def test_entities_of_the_pack(pack):
    found = photographs(f"flickr8k_entities:{pack / 'flickr'}")
    assert Counter(each.split for each in found) == dict(
        train=6000, val=1000, test=1000, restval=91
    )
    assert Counter(kind for kind, *_ in found.faults) == {"phrase without box": 125_930 - 105_107}
    files = sorted((pack / "flickr/Annotations").glob("*.xml"))
    assert sum(len(read_entity_boxes(path)) for path in files) == 52_311
    mentions = []
    for path in sorted((pack / "flickr/Sentences").glob("*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            mentions += read_sentence(line)[1]
    assert len(mentions) == 125_930
    kinds = {name for each in mentions for name in each.type.split("/")}
    kinds -= {"notvisual"}
    assert kinds >= {name for each in found for type_ in each.types for name in type_.split("/")}
    of_thirty = read_flickr30k_entities(pack / "flickr")
    assert [each.boxes for each in of_thirty] == [each.boxes for each in found]
    assert {each.split for each in of_thirty} == {"train", "val", "test"}


@pytest.mark.data
def test_heads_of_the_phrases_of_entities(pack):
    found = photographs(f"flickr8k_entities:{pack / 'flickr'}")
    phrases = [phrase for each in found for phrase in each.phrases]
    heads = pd.Series([phrase_head(phrase)[0] for phrase in phrases]).value_counts()
    assert {"dog", "person", "man"} == {*heads.index[:3]}
    assert heads.iloc[:400].sum() > 0.8 * len(phrases)


@pytest.mark.data
def test_hierarcaps_of_the_pack(pack):
    found = read_hierarcaps(pack / "hierarcaps")
    assert not unreadable_pictures([each.image for each in found], progress=False)
    assert len(found) == 1000 and not found.faults
    assert {len(each.captions) for each in found} == {4}
    every, faults = read_expanded_chains(pack / "hierarcaps", with_test=True)
    assert len(every) == 23_479 and len({chain.image for chain in every}) == 5000 and not faults
    assert len(read_expanded_chains(pack / "hierarcaps")[0]) == 18_770
    counts = Counter(parts_of([each.id for each in found]).tolist())
    assert counts == dict.fromkeys(range(8), 125)


@pytest.mark.data
def test_length_explains_most_of_hierarcaps(pack):
    "The numbers that the protocol states about caption length."
    words = word_counts([each.captions for each in read_hierarcaps(pack / "hierarcaps")])
    assert words.mean(0).round(1).tolist() == [1.3, 1.8, 6.3, 11.7]
    assert (words[:, 0] == words[:, 1]).sum() == 284
    table = length_oracles(words)
    assert table.loc["log length", "tau"].round(2) == 0.91
    assert table.loc["perfect", "regressed_tau"].round(2) == 0.41
    assert table.loc["noisy", "tau"].round(1) == 0.7
    assert table.loc["noisy", "regressed_tau"].round(2) == 0.13


@pytest.mark.data
def test_fashion_of_the_pack(pack):
    root = pack / "fashion"
    counts = read_compositions(root, read_split(root)).counts()
    assert counts == {"train": 6314, "val": 3184, "test": 4261}
    assert Counter(each.split for each in photographs(f"fashion:{root}")) == counts
    split = read_split(root)
    assert (len(split.states), len(split.objects), len(split.pairs())) == (18, 41, 304)
    assert (len(split.unseen_in("val")), len(split.unseen_in("test"))) == (46, 61)
