"The command as a user calls it: two processes share the images, a killed run goes on, and the numbers are those of one process."
import os
import signal
import subprocess
import sys

import pandas as pd
import pytest

from hypvl.cli import main
from hypvl.data.formats import SuiteConfig
from hypvl.data.layouts import write_data_root
from hypvl.data.world import World
from hypvl.models import create_model

ENV = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def command(folder, out):
    return ["-m", "hypvl", "evaluate", "--checkpoint", f"{folder}/model", "--data_root", f"{folder}/data", "--out", f"{folder}/{out}",
            "--sections", "retrieval,vl_checklist/size_small", "--scores", "paper", "--device", "cpu", "--workers", "0", "--batch_size", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    "A model, and the world in the folders of real data."
    folder = tmp_path_factory.mktemp("evaluate")
    write_data_root(World(), folder / "data", (), SuiteConfig(retrieval=30, captions=2, checklist=6, crepe=1))
    create_model("phyclip_tiny", seed=0).save_pretrained(folder / "model")
    assert main(command(folder, "one")[2:]) == 0
    return folder


def results(folder, out):
    return pd.read_csv(folder / out / "results.csv").drop(columns="commit")


def points(folder, out):
    return len(list((folder / out / "points").rglob("*.safetensors")))


def test_two_processes_share_the_images(folder):
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run([sys.executable, *launch, *command(folder, "two")], env=ENV, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("retrieval/COCO") == 1 and points(folder, "two") == 2 * points(folder, "one")
    pd.testing.assert_frame_equal(results(folder, "two"), results(folder, "one"))


def test_a_killed_run_goes_on(folder, capsys):
    process = subprocess.Popen([sys.executable, *command(folder, "killed")], env=ENV, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "retrieval/COCO" in line: break
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert points(folder, "killed") >= 1 and not (folder / "killed" / "results.csv").exists()
    assert main(command(folder, "killed")[2:]) == 0 and "retrieval/COCO: found finished" in capsys.readouterr().out
    pd.testing.assert_frame_equal(results(folder, "killed"), results(folder, "one"))
