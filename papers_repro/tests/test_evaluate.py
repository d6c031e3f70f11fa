"""The command as a user calls it.

Two processes share the images, a killed run goes on, the numbers are those of one process, and a
geometry of one's own is evaluated with what it has.
"""

import os
import signal
import subprocess
import sys

import pandas as pd
import pytest

from hypvl.cli import main
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


def test_a_plugin_brings_a_geometry(folder):
    "A model whose geometry is defined in a file: evaluated with the file, refused without it."
    plugin = folder / "torus_plugin.py"
    plugin.write_text(TORUS)
    save = "import sys, torus_plugin; from hypvl.models import create_model; "
    save += "create_model('clip_tiny', seed=0, geometry=torus_plugin.TorusConfig(16))"
    save += ".save_pretrained(sys.argv[1])"
    called = [sys.executable, "-c", save, f"{folder}/torus"]
    env = ENV | {"PYTHONPATH": os.pathsep.join([str(folder), os.getcwd()])}
    subprocess.run(called, env=env, check=True, timeout=120)
    call = command(folder, "of_torus")
    call[call.index("--checkpoint") + 1] = f"{folder}/torus"
    without = subprocess.run([sys.executable, *call], env=ENV, capture_output=True, text=True)
    assert without.returncode == 2 and "'torus'" in without.stderr, without.stderr
    call += ["--plugin", str(plugin)]
    done = subprocess.run([sys.executable, *call], env=ENV, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr[-3000:]
    assert "torus, score 'paper'" in done.stdout
    rows = results(folder, "of_torus")
    assert rows[rows["model"] == "torus"]["value"].notna().all()


@pytest.mark.full
def test_a_run_on_real_data_is_evaluated_on_it(folder):
    "A recipe with `data.root` trains on its shards, and its folder decides the suite."
    from hypvl.papers.phyclip.recipes import recipe
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
