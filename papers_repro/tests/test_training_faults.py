"What happens to a run when the machine fails: killed processes and full disks."

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from hypvl.training.launch import run_job
from hypvl.training.metrics import read_metrics

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
SETTINGS = dict(
    steps=20,
    batch_size=8,
    lr=1e-2,
    warmup=2,
    log_every=1,
    checkpoint_every=5,
    ema=0.9,
    progress=False,
    tensorboard=False,
)


def job(out, **config):
    "A folder with a job."
    out.mkdir(parents=True)
    (out / "job.json").write_text(
        json.dumps(
            dict(function="tiny_training:train", config=dict(train=SETTINGS, dropout=0.2) | config)
        )
    )
    return out


def test_twenty_steps_are_ten_and_a_kill_and_ten(tmp_path):
    whole, parts = job(tmp_path / "whole"), job(tmp_path / "parts", kill=13)
    killed = subprocess.run(
        [sys.executable, "-m", "hypvl.training.launch", "--job", str(parts)],
        env=ENV,
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (
        read_metrics(parts / "run")["step"].max() == 12
    )  # the row of the step in which it died was not written
    run_job(parts), run_job(whole)
    for name in ("model", "ema"):
        a, b = (load_file(p / f"run/checkpoints/latest/{name}.safetensors") for p in (whole, parts))
        assert a.keys() == b.keys() and all(a[k].equal(b[k]) for k in a)
    a, b = (
        read_metrics(p / "run").drop(columns=["samples_per_s", "seconds"]) for p in (whole, parts)
    )
    assert a.equals(b) and a["step"].tolist() == list(range(1, 21))


FULL = """
set -e
mount -t tmpfs -o size=256k none "$1"
exec "$2" - "$1" <<'PY'
import sys, torch, errno
from hypvl.training.checkpoint import CheckpointError, checkpoints, load_checkpoint, save_checkpoint
folder = sys.argv[1] + '/checkpoints'
save_checkpoint(folder, 1, {'model': {'w': torch.ones(20_000)}}, {})
try: save_checkpoint(folder, 2, {'model': {'w': torch.ones(50_000)}}, {})
except CheckpointError as e: assert e.errno == errno.ENOSPC, e; print(e)
assert [p.name for p in checkpoints(folder)] == ['step_0000001']
assert load_checkpoint(folder + '/step_0000001').weights['model']['w'].sum() == 20_000
save_checkpoint(folder, 3, {'model': {'w': torch.ones(20_000)}}, {}, keep=1)
assert [p.name for p in checkpoints(folder)] == ['step_0000003']
PY
"""


def test_a_full_disk_leaves_the_earlier_checkpoint(tmp_path):
    own = ["unshare", "-rm"]
    if (
        not shutil.which("unshare")
        or subprocess.run(
            [*own, "mount", "-t", "tmpfs", "none", str(tmp_path)], capture_output=True
        ).returncode
    ):
        pytest.skip("a small disk of our own cannot be mounted here")
    done = subprocess.run(
        [*own, "bash", "-c", FULL, "bash", str(tmp_path), sys.executable],
        env=ENV,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (
        "checkpoint of step 2: no room for 0.2 MB" in done.stdout
        and "The checkpoint of step 1 is intact" in done.stdout
    )
