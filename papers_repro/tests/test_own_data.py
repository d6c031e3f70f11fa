"Training and evaluation on pictures and captions of one's own, from the command line."

import csv
import json
import logging
import string
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from hypvl.cli import main
from hypvl.data.own_data import PairSource, read_own
from hypvl.data.pairs import find_pairs

WORDS = [
    f"{colour} {thing}" for colour in ("red", "green", "blue") for thing in string.ascii_lowercase
]


@pytest.fixture
def folder(tmp_path):
    "Forty pictures with captions, one broken, one without a caption, one of an unread kind."
    place = tmp_path / "photos"
    place.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (40, 24, 24, 3), dtype=np.uint8)
    for i, suffix in zip(range(40), ("png", "jpg", "bmp", "gif", "tif") * 8):
        Image.fromarray(pixels[i]).save(place / f"{i:02d}.{suffix}")
        (place / f"{i:02d}.txt").write_text(f"a photo of {WORDS[i]}\n")
    (place / "00.png").write_bytes((place / "00.png").read_bytes()[:60])
    (place / "01.txt").unlink()
    (place / "late.heic").touch()
    return place


def run(*arguments):
    return main([str(argument) for argument in arguments])


def test_a_folder_is_trained_on_and_evaluated(folder, tmp_path, capsys, caplog):
    out = tmp_path / "runs"
    command = ("train", "phyclip:phyclip", "--preset", "smoke", "--data", folder, "--out", out)
    command += ("--set", "train.steps=4", "--device", "cpu", "--quiet")
    with caplog.at_level(logging.WARNING):
        assert run(*command) == 0
    output = capsys.readouterr().out
    assert (
        "38 pictures with 38 captions, 3 left out" in output
        and "retrieval/photos t2i_R@1" in output
    )
    for kind in ("broken picture", "no caption", "unread kind"):
        assert f"left out: 1 x {kind}, the first is" in caplog.text
    caplog.clear()
    assert run(*command) == 0
    assert "found finished" in capsys.readouterr().out and "left out" not in caplog.text
    model = next((out / "runs").iterdir()) / "model"
    scores = tmp_path / "scores"
    evaluate = ("evaluate", "--checkpoint", model, "--data", folder, "--out", scores)
    assert run(*evaluate, "--workers", 0, "--quiet", "--device", "cpu") == 0
    results = pd.read_csv(scores / "results.csv")
    ours = results[results["model"].eq("photos") | results["value"].notna()]
    for metric in ("t2i_R@1", "i2t_R@10"):
        assert set(ours[ours["metric"] == metric]["n"]) == {38}
    assert run(*evaluate, "--suite", "world") == 2
    assert "suite: the data say it" in capsys.readouterr().err


def test_class_folders_give_zero_shot_accuracy(folder, tmp_path):
    classes = tmp_path / "classes"
    for i, path in enumerate(sorted(folder.glob("*.jpg"))):
        place = classes / ("red", "green")[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        path.rename(place / path.name)
    evaluate = ("evaluate", "--checkpoint", "clip_world", "--data", classes, "--workers", 0)
    assert run(*evaluate, "--out", tmp_path / "scores", "--quiet", "--device", "cpu") == 0
    results = pd.read_csv(tmp_path / "scores/results.csv")
    assert set(results[results["metric"] == "accuracy"]["n"]) == {8}


def test_too_many_broken_pictures_stop_before_the_first_step(folder, tmp_path, capsys):
    for path in sorted(folder.glob("*.bmp")):
        path.write_bytes(b"no picture")
    out = tmp_path / "runs"
    command = ("train", "phyclip:meru", "--preset", "smoke", "--data", folder, "--out", out)
    command += ("--set", "train.steps=4", "--device", "cpu", "--quiet")
    assert run(*command) == 1
    assert "11 of 41 samples are broken (26.8%, allowed max_bad=10.0%)" in capsys.readouterr().err
    assert not (out / "runs").exists()
    assert run(*command, "--set", "data.max_bad=0.3", "--set", "train.batch_size=8") == 0


def test_what_is_asked_for_wrongly_says_so_at_once(folder, tmp_path, capsys):
    train = ("train", "phyclip:meru", "--preset", "smoke", "--out", tmp_path / "runs")
    for more, message in (
        (("--data", folder / "no"), "data: no file or folder"),
        (("--data", folder, "--data_root", folder), "give either data or data_root"),
    ):
        assert run(*train, *more) == 2
        assert message in capsys.readouterr().err
    assert run("train", "h2em:csp", "--preset", "smoke", "--data", folder) == 2
    assert "recipes of pairs are phyclip:clip" in capsys.readouterr().err


LETTERS = st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp"))


@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    captions=st.lists(st.text(LETTERS, min_size=1, max_size=12), min_size=1, max_size=6),
    kind=st.sampled_from(("txt", "csv", "tsv", "plain tsv")),
)
def test_captions_of_any_letters_come_back(tmp_path_factory, captions, kind):
    "Every caption with a word is read as it was written, in every layout, and no other."
    place = tmp_path_factory.mktemp("captions")
    picture = Image.new("RGB", (4, 4))
    names = [f"{i}.png" for i in range(len(captions))]
    for name in names:
        picture.save(place / name)
    if kind == "txt":
        for name, caption in zip(names, captions):
            (place / name).with_suffix(".txt").write_text(caption, encoding="utf-8")
        source = place
    else:
        source = place / f"table.{kind[-3:]}"
        with open(source, "w", encoding="utf-8", newline="") as file:
            if kind == "plain tsv":
                rows = [["image", "caption"], *zip(names, captions)]
                file.writelines("\t".join(row) + "\n" for row in rows)
            else:
                writer = csv.writer(file, delimiter="\t" if kind == "tsv" else ",")
                writer.writerows([("image", "caption"), *zip(names, captions)])
    found = find_pairs(source)
    wanted = {name: " ".join(text.split("\n")).strip() for name, text in zip(names, captions)}
    wanted = {name: text for name, text in wanted.items() if text}
    read = {path.name: text for path, text in found.pairs}
    if kind == "plain tsv":  # a cell in quotation marks may be read without them
        bare = {name: text.replace('"', "") for name, text in wanted.items()}
        assert {name: text.replace('"', "") for name, text in read.items()} == bare
    else:
        assert read == wanted
    assert len(found.faults) == len(captions) - len(read)


def test_rows_that_stand_twice_become_one_sample(folder, tmp_path):
    rows = [("photos/02.bmp", "a fly"), ("photos/02.bmp", "a fly"), ("photos/02.bmp", "an insect")]
    table = tmp_path / "rows.csv"
    table.write_text("\n".join(",".join(row) for row in [("image", "caption"), *rows]))
    assert len(find_pairs(table).check()) == 3
    data = PairSource(root=str(table)).prepare(tmp_path / "data", 8, progress=False)
    assert [*read_own(data.train)] == [(Path(folder / "02.bmp"), ("a fly", "an insect"))]
    facts = json.loads((data.suite / "pairs.json").read_text())
    assert facts["lines"][-1] == "1 repeated rows count once"
