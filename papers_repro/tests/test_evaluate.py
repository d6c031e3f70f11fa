"The command as a user calls it: two processes share the images, a killed run goes on, and the numbers are those of one process."

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
    assert main(command(folder, "one")[2:]) == 0
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
    assert done.returncode == 0, done.stderr[-3000:]
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
    assert points(folder, "killed") >= 1 and not (folder / "killed" / "results.csv").exists()
    assert (
        main(command(folder, "killed")[2:]) == 0
        and "retrieval/COCO: found finished" in capsys.readouterr().out
    )
    pd.testing.assert_frame_equal(results(folder, "killed"), results(folder, "one"))


@pytest.mark.full
def test_a_run_on_real_data_is_evaluated_on_it(folder):
    "A recipe with `data.root` trains on its shards and takes PHyCLIP's suite where the folder holds no world."
    from hypvl.papers.phyclip.recipes import recipe
    from hypvl.papers.runs import prepare_data, run

    small = {
        "train.steps": 2,
        "train.warmup": 1,
        "train.checkpoint_every": 2,
        "train.batch_size": 16,
        "data.train": 64,
        "data.val": 32,
        **{f"data.suite.{name}": 1 for name in ("retrieval", "checklist", "crepe", "factors")},
    }
    made = recipe("phyclip", "smoke", **small)
    shards = prepare_data(
        made.data, made.model.vision.image_size, folder / "prepared", progress=False
    ).train
    (folder / "data" / "grit").symlink_to(shards)
    done = run(
        recipe("phyclip", "smoke", **small, **{"data.root": str(folder / "data")}),
        folder / "runs",
        progress=False,
    )
    rows = done.frames()["results"].set_index("dataset")
    assert rows.loc["COCO", "value"].notna().all() and rows.loc["overall", "n"].gt(0).all()
    assert (
        rows.loc["CIFAR-10", "value"].isna().all()
        and rows.loc["CIFAR-10", "reason"].str.contains("data_root/cifar-10-batches-py").all()
    )
