"""The command as a user calls it.

Two processes share the images, a killed run goes on, the numbers are those of one process, and a
geometry of one's own is evaluated with what it has.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pytest
from new_process import in_new_process
from PIL import Image

import hypvl.evaluation.suites.evaluate as suite_module
from hypvl.cli import main
from hypvl.data.jobs import folder_lock
from hypvl.data.world.published import write_data_root
from hypvl.data.world.scenes import World
from hypvl.data.world.writers import SuiteConfig
from hypvl.models import create_model

ENV = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def command(folder, out):
    return [
        "-m",
        "hypvl",
        "evaluate",
        "--checkpoint",
        f"{folder}/model",
        "--data_root",
        f"{folder}/data",
        "--out",
        f"{folder}/{out}",
        "--sections",
        "retrieval,vl_checklist/size_small",
        "--scores",
        "paper",
        "--device",
        "cpu",
        "--workers",
        "0",
        "--batch_size",
        "2",
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    "A model, and the world in the folders of real data."
    folder = tmp_path_factory.mktemp("evaluate")
    write_data_root(
        World(), folder / "data", (), SuiteConfig(retrieval=30, captions=2, checklist=6, crepe=1)
    )
    create_model("phyclip_tiny", seed=0).save_pretrained(folder / "model")
    assert main(command(folder, "one")[2:]) == 3  # 30 of COCO's 5,000 images
    return folder


def results(folder, out):
    return pd.read_csv(folder / out / "results.csv").drop(columns="commit")


def points(folder, out):
    return len(list((folder / out / "points").rglob("*.safetensors")))


def test_two_processes_share_the_images(folder):
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [sys.executable, *launch, *command(folder, "two")],
        env=ENV,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "(exitcode: 3)" in done.stderr, done.stderr[-3000:]  # as the launcher says it
    assert done.stdout.count("retrieval/COCO") == 1 and points(folder, "two") == 2 * points(
        folder, "one"
    )
    pd.testing.assert_frame_equal(results(folder, "two"), results(folder, "one"))


def test_a_killed_run_goes_on(folder, capsys):
    process = subprocess.Popen(
        [sys.executable, *command(folder, "killed")], env=ENV, stdout=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if "retrieval/COCO" in line:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert points(folder, "killed") >= 1
    assert (
        main(command(folder, "killed")[2:]) == 3
        and "retrieval/COCO: found finished" in capsys.readouterr().out
    )
    pd.testing.assert_frame_equal(results(folder, "killed"), results(folder, "one"))


KILLS = """
import os, random, signal, sys, time

import hypvl.papers.report  # so that the processes below begin at once
from hypvl.cli import main

words, draw = sys.argv[1:], random.Random(0)


def run(out, seconds=None):
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(main([*words, "--out", out]))
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status), os.waitstatus_to_exitcode(status)


folder = words[words.index("--data_root") + 1]
start = time.monotonic()
assert run(folder + "/../whole") == (False, 3)
took, killed, tries = time.monotonic() - start, 0, 0
while killed < 10:
    died, _ = run(folder + "/../torn", draw.uniform(0, took / (1 + tries / 10)))
    killed, tries = killed + died, tries + 1
    assert tries < 60, "it ends before it can be killed"
assert run(folder + "/../torn") == (False, 3)
print(killed, "killed,", tries, "begun")
"""


@pytest.mark.full
def test_ten_kills_change_nothing(folder):
    "Killed at random moments ten times, an evaluation ends with the same files, byte for byte."
    words = command(folder, "unused")[2:]
    del words[words.index("--out") : words.index("--out") + 2]
    done = subprocess.run(
        [sys.executable, "-c", KILLS, *words], env=ENV, capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    print(done.stdout)
    files = {}
    for name in ("whole", "torn"):
        place = folder / name
        found = (path for path in sorted(place.rglob("*")) if path.is_file())
        files[name] = {path.relative_to(place): path.read_bytes() for path in found}
    assert [*files["whole"]] == [*files["torn"]]
    for path, content in files["whole"].items():
        assert files["torn"][path] == content, path


def of_folders(folder, out, *more):
    "The words that evaluate a folder of classes."
    words = ["evaluate", "--checkpoint", f"{folder}/model", "--data_root", f"{folder}/classes"]
    return [*words, "--out", str(out), "--suite", "folder", "--device", "cpu", *more]


@pytest.fixture(scope="module")
def classes(folder):
    "Three pictures in each of three classes, whose names other programs take for something else."
    draw = np.random.default_rng(0)
    for name in ("2024", "NA", "cat"):
        (folder / "classes" / name).mkdir(parents=True)
        for i in range(3):
            picture = Image.fromarray(draw.integers(0, 255, (40, 40, 3), np.uint8))
            picture.save(folder / "classes" / name / f"{i}.png")
    return folder


def test_classes_called_na_and_2024_keep_their_names(classes):
    "Twice, the second time from what was kept."
    frames = []
    for _ in range(2):
        assert main(of_folders(classes, classes / "named")) == 0
        frames.append(pd.read_parquet(classes / "named" / "predictions.parquet"))
    once, again = frames
    pd.testing.assert_frame_equal(once, again)
    assert once["target"].value_counts().to_dict() == {"2024": 6, "NA": 6, "cat": 6}  # two scores
    right = once["target"] == once["predicted"]
    assert {*once["predicted"]} <= {"2024", "NA", "cat"} and right.eq(once["rank"] == 0).all()
    rows = pd.read_csv(classes / "named" / "results.csv").query("model != 'chance'")
    micro = rows.query("metric == 'accuracy_micro'").set_index("score")["value"]
    assert micro.to_dict() == pytest.approx(right.groupby(once["score"]).mean().to_dict())


def test_what_classes_are_called_is_said(classes, capsys):
    "Printed and kept; a list without tabs that names folders is refused."
    names = classes / "names.txt"
    names.write_text("cat\ta cat\nNA\tsalt\n2024\ta year\n")
    assert main(of_folders(classes, classes / "called", "--names", str(names))) == 0
    output = capsys.readouterr().out
    assert "classes: 2024 → a year, NA → salt, cat → a cat, … 3 in all" in output
    assert "prompts: a photo of a {} | a picture of a {} | one {}" in output
    facts = json.loads((classes / "called/provenance.json").read_text())
    assert facts["names"] == {"2024": "a year", "NA": "salt", "cat": "a cat"}
    names.write_text("2024 a year\nNA salt\ncat a cat\n")
    assert main(of_folders(classes, classes / "spaced", "--names", str(names))) == 2
    assert "a blank follows the class folder '2024', a tab is" in capsys.readouterr().err
    names.write_text("a year\nsalt\na cat\n")
    assert main(of_folders(classes, classes / "listed", "--names", str(names))) == 2
    assert "two orders, 2024, NA, cat … and 2024, cat, NA …" in capsys.readouterr().err


def test_what_is_asked_for_wrongly_replaces_nothing(classes, capsys):
    "A typo among the names, no such file, no such section: 2, and every file is as it was."
    names, out = classes / "typo.txt", classes / "kept"
    names.write_text("cat\ta cat\nNA\tsalt\n2024\ta year\n")
    assert main(of_folders(classes, out, "--names", str(names))) == 0
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert out / "items.parquet" in before and out / "predictions.parquet" in before
    for text, words, message in (
        ("catt\ta cat\nNA\tsalt\n2024\ta year\n", (), "'cat'; 'catt' is no class folder"),
        (None, (), "names: no file"),
        ("cat\tcat\nNA\tsalt\n2024\ta year\n", ("--sections", "foo"), "unknown name 'foo'"),
    ):
        names.write_text(text) if text else names.unlink()
        capsys.readouterr()
        assert main(of_folders(classes, out, "--names", str(names), *words)) == 2
        printed = capsys.readouterr()
        assert message in printed.err and printed.out == "", printed
        after = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
        assert after == before


def test_pictures_that_nobody_reads_are_missing(classes, capsys):
    "They count among those that there should be, and the exit code says so."
    folder = classes / "of_phone"
    shutil.copytree(classes / "classes", folder / "classes")
    (folder / "model").symlink_to(classes / "model")
    (folder / "classes/cat/3.heic").write_bytes(b"")
    (folder / "classes/@eaDir").mkdir()
    assert main(of_folders(folder, folder / "out")) == 3
    assert "a part only: classes, 9 items of 10" in capsys.readouterr().out
    named = pd.read_parquet(folder / "out/predictions.parquet")["target"]
    assert {*named} == {"2024", "NA", "cat"}
    (folder / "classes/cat/3.heic").unlink()
    assert main(of_folders(folder, folder / "out")) == 0  # what was kept is made anew
    assert "replaces" not in capsys.readouterr().out
    (folder / "classes/cat/2.png").unlink()
    assert main(of_folders(folder, folder / "out")) == 0
    output = capsys.readouterr().out
    assert "replaces the results of evaluate0, suite folder, sections all, from 20" in output
    assert "tables " not in output  # the suite has none
    assert main([*of_folders(folder, classes / "above"), "--data_root", str(folder)]) == 1
    assert (
        "deeper, as 'classes/2024/0.png'; is 'data_root/classes' meant" in capsys.readouterr().err
    )


def test_a_folder_that_is_held_is_waited_for(classes, caplog):
    "Results and tables of two evaluations of one folder never mix: the second begins after."
    out, ends = classes / "held", []
    out.mkdir()
    with folder_lock(out):
        second = threading.Thread(target=lambda: ends.append(main(of_folders(classes, out))))
        second.start()
        while "held is being filled by process" not in caplog.text:
            assert second.is_alive(), ends
            second.join(timeout=0.1)
        second.join(timeout=1)
        assert second.is_alive() and not (out / "results.csv").exists()
    second.join(timeout=120)
    assert ends == [0] and (out / "results.csv").exists()


def test_what_cannot_begin_ends_at_once_with_2(classes, capsys):
    "And leaves nothing behind."
    (classes / "file.txt").write_text("mine")
    before = sorted(classes.rglob("*"))
    for words, message in (
        (of_folders(classes, classes / "file.txt"), "is a file, a folder is needed"),
        (of_folders(classes, classes / "classes/out"), "where it would count as a class"),
        (of_folders(classes, classes / "x", "--batch_size", "0"), "batch_size: at least 1, got 0"),
        (of_folders(classes, classes / "x", "--limit", "0"), "--limit: a number from 1 on"),
    ):
        try:
            code = main(words)
        except SystemExit as ended:  # argparse's own way
            code = ended.code
        assert (code, message in capsys.readouterr().err) == (2, True), words
    assert sorted(classes.rglob("*")) == before


def test_another_version_measures_again(classes, capsys, monkeypatch):
    out = classes / "version"
    for version, again in ((None, False), (None, True), ("9.9", False), ("9.9", True)):
        if version is not None:
            monkeypatch.setattr(suite_module, "__version__", version)
        assert main(of_folders(classes, out)) == 0
        assert ("found finished" in capsys.readouterr().out) == again, version


def test_a_list_with_images_missing_is_marked(folder):
    "VL-CheckList's first pairs are others where images are missing, even if there are enough."
    root = folder / "half"
    shutil.copytree(folder / "data", root)
    call = [*command(folder, "of_half")[2:], "--max_pairs", "3"]
    call[call.index("--data_root") + 1] = str(root)
    call[call.index("--sections") + 1] = "vl_checklist/size_small"
    assert main(call) == 0  # three of three asked for
    rows = results(folder, "of_half").query("metric == 'accuracy'")
    assert rows["n"].eq(rows["expected_n"]).all()
    (root / "visual_genome/VG_100K/size_small_00001.jpg").unlink()
    assert main(call) == 3
    rows = results(folder, "of_half").query("metric == 'accuracy'")
    assert rows["n"].lt(rows["expected_n"]).all()


TORUS = """
from dataclasses import dataclass

import torch

from hypvl.geometry.spaces import Geometry, GeometryConfig


class Torus(Geometry):
    def lift(self, features, side="image"):
        return torch.pi * torch.tanh(features)

    def score(self, queries, keys, side="image", *, kind="paper"):
        return (queries[:, None] - keys).cos().mean(-1)


@dataclass(frozen=True)
class TorusConfig(GeometryConfig, kind="torus"):
    dim: int = 16
    temperature: float = 0.07

    def make(self):
        return Torus(**vars(self))
"""


def save_torus(folder):
    "Write the model of a plugin."
    sys.path.insert(0, str(folder))
    from torus_plugin import TorusConfig

    create_model("clip_tiny", seed=0, geometry=TorusConfig(16)).save_pretrained(folder / "torus")


def test_a_plugin_brings_a_geometry(folder):
    "A model whose geometry is defined in a file: evaluated with the file, refused without it."
    plugin, log = folder / "torus_plugin.py", folder / "log.txt"
    plugin.write_text(TORUS)
    assert in_new_process(save_torus, folder, log=log) == (0, "")
    call = command(folder, "of_torus")[2:]
    call[call.index("--checkpoint") + 1] = f"{folder}/torus"
    code, output = in_new_process(main, call, log=log)
    assert code == 2 and "'torus'" in output, output
    code, output = in_new_process(main, [*call, "--plugin", str(plugin)], log=log)
    assert code == 3, output[-3000:]
    assert "torus, score 'paper'" in output
    rows = results(folder, "of_torus")
    assert rows[rows["model"] == "torus"]["value"].notna().all()


@pytest.mark.full
def test_a_run_on_real_data_is_evaluated_on_it(folder):
    "A recipe with `data.root` trains on its shards, and its folder decides the suite."
    from hypvl.papers.clip_line import recipe
    from hypvl.papers.runs import run

    small = {
        "train.steps": 2,
        "train.warmup": 1,
        "train.checkpoint_every": 2,
        "train.batch_size": 16,
    }
    few = {f"data.suite.{name}": 1 for name in ("retrieval", "checklist", "crepe", "factors")}
    made = recipe("phyclip", "smoke", **small, **few, **{"data.train": 64, "data.val": 32})
    shards = made.data.prepare(folder / "prepared", made.image_size, progress=False).train
    (folder / "data" / "grit").symlink_to(shards)
    done = run(
        recipe(
            "phyclip", "smoke", **small, **{"data.kind": "grit", "data.root": str(folder / "data")}
        ),
        folder / "runs",
        progress=False,
    )
    rows = done.frames()["results"].set_index("dataset")
    assert rows.loc["COCO", "value"].notna().all() and rows.loc["overall", "n"].gt(0).all()
    assert (
        rows.loc["CIFAR-10", "value"].isna().all()
        and rows.loc["CIFAR-10", "reason"].str.contains("data_root/cifar-10-batches-py").all()
    )
