"""A job on a cluster is queued again when it is preempted or out of time, and a dead one is found.

Stand-ins for sbatch, srun, scontrol and sacct run the real job of submitit on this machine.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from hypvl.training.launch import Cluster, finished, launch, submission_state

JOB = '''
import os, time
from pathlib import Path
from hypvl.training.interruption import StopRequest

def train(config, out):
    """Leaves its number; waits to be disturbed until it has started as often as it should."""
    starts = int((out / "starts").read_text()) + 1 if (out / "starts").exists() else 1
    (out / "starts").write_text(str(starts))
    (out / "pid.part").write_text(str(os.getpid()))
    os.replace(out / "pid.part", out / "pid")
    if starts < config["starts"]:
        time.sleep(300)
    return {"starts": starts, "restarted": os.environ["RESTARTED"]}

def train_on_nodes(config, out):
    """Each process leaves its rank; the sum of the ranks needs all of them."""
    import torch
    torch.distributed.init_process_group("gloo")
    total = torch.tensor(float(os.environ["RANK"]))
    torch.distributed.all_reduce(total)
    (out / f"rank{os.environ['RANK']}").write_text(os.environ["GROUP_RANK"])
    return {"world_size": int(os.environ["WORLD_SIZE"]), "sum": total.item()}

def train_together(config, out):
    """One of several processes, which saves when it is asked to stop."""
    rank, stop = os.environ["RANK"], StopRequest()
    with stop:
        (out / f"begun{rank}.part").write_text(str(os.getpid()))
        os.replace(out / f"begun{rank}.part", out / f"begun{rank}")
        while os.environ["RESTARTED"] == "0" and not stop.number:
            time.sleep(0.1)
        if stop.number:
            time.sleep(3)  # as a checkpoint takes; a job that waits for none is queued at once
            (out / f"saved{rank}").write_text("")
    if stop.number:
        stop.obey()
    return {"saved": sorted(path.name for path in out.glob("saved*"))}
'''
TOOLS = {
    "sbatch": """
cp "$1" {here}/script
echo RUNNING > {here}/state
nodes=$(sed -n 's/#SBATCH --nodes=//p' "$1")
test "$nodes" = 2 || nodes=1
for rank in $(seq 0 $((nodes - 1))); do setsid {here}/bin/node 0 $rank $nodes >/dev/null 2>&1 & done
echo Submitted batch job 4242""",
    "node": """
export SLURM_JOB_ID=4242 SLURM_PROCID=${2:-0} SLURM_LOCALID=0 SLURM_NODEID=${2:-0} RESTARTED=$1
export SLURM_NTASKS=${3:-1} SLURM_JOB_NUM_NODES=${3:-1} SLURM_JOB_NODELIST=localhost
sh {here}/script >> {here}/log 2>&1 && echo COMPLETED > {here}/state""",
    "srun": """
until case "$1" in *bin/python*) true;; *) false;; esac; do shift; done
exec "$@" """,
    "scontrol": """
ls {here}/run > {here}/there
echo "$@" >> {here}/asked
setsid {here}/bin/node 1 > /dev/null 2>&1 &""",
    "sacct": """
printf 'JobID|State|NodeList\\n4242|%s|localhost\\n' "$(cat {here}/state)" """,
}


def wait_until(true, seconds=240):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "nothing has happened"
        time.sleep(0.1)


def kill(pid_file):
    "End a job's process where it still runs."
    if pid_file.exists():
        try:
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
        except ProcessLookupError:
            pass


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    "A folder with the stand-ins, which are on PATH, and with the module of the job."
    (tmp_path / "bin").mkdir()
    for name, lines in TOOLS.items():
        tool = tmp_path / "bin" / name
        tool.write_text("#!/bin/sh" + lines.replace("{here}", str(tmp_path)) + "\n")
        tool.chmod(0o755)
    (tmp_path / "job_of_a_test.py").write_text(JOB)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    root = Path(__file__).resolve().parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(root)]))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("job_of_a_test", None)
    kill(tmp_path / "run" / "pid")


def submit(out, starts, minutes):
    "Hand the job to the stand-in for a cluster; its process when it runs."
    cluster = Cluster(timeout_min=minutes, gpus_per_node=0, cpus_per_task=1)
    job = "job_of_a_test:train", {"starts": starts}, out
    assert launch(*job, "slurm", cluster=cluster, wait=False) is None
    wait_until((out / "pid").exists)
    return job, int((out / "pid").read_text())


# submitit takes a job of one minute for one whose time is over, whenever the signal comes
@pytest.mark.parametrize("minutes, reason", [(600, "preempted"), (1, "timed-out")])
def test_a_job_whose_time_is_over_is_queued_again_and_goes_on(slurm, minutes, reason):
    out = slurm / "run"
    job, pid = submit(out, starts=2, minutes=minutes)
    assert submission_state(out) == "active"
    os.kill(pid, signal.SIGUSR2)
    wait_until(lambda: finished(out))
    assert finished(out)["result"] == {"starts": 2, "restarted": "1"}
    assert (slurm / "asked").read_text() == "requeue 4242\n"
    assert f"this job is {reason}" in (slurm / "log").read_text()
    assert launch(*job, "slurm") == finished(out)["result"]  # found, not started again


@pytest.mark.parametrize("to_all", [True, False])  # of the job, as Slurm signals, or to one
def test_all_processes_of_a_node_save_before_the_job_is_queued_again(slurm, to_all):
    out = slurm / "run"
    cluster = Cluster(timeout_min=600, gpus_per_node=2, cpus_per_task=1)
    launch("job_of_a_test:train_together", {}, out, "slurm", cluster=cluster, wait=False)
    wait_until(lambda: {"begun0", "begun1"} <= {path.name for path in out.iterdir()})
    worker = psutil.Process(int((out / "begun0").read_text()))
    node = worker.parents()[1]  # above the launcher
    every = node.children(recursive=True) if to_all else []
    for process in (node, *every):
        process.send_signal(signal.SIGUSR2)
    wait_until(lambda: finished(out))
    assert finished(out)["result"] == {"saved": ["saved0", "saved1"]}
    assert {"saved0", "saved1"} <= {*(slurm / "there").read_text().split()}  # when it was queued
    assert (slurm / "asked").read_text() == "requeue 4242\n"


def test_processes_of_two_nodes_find_each_other(slurm):
    out = slurm / "run"
    cluster = Cluster(nodes=2, gpus_per_node=2, cpus_per_task=1, slurm_partition="a100")
    launch("job_of_a_test:train_on_nodes", {}, out, "slurm", cluster=cluster, wait=False)
    lines = (slurm / "script").read_text().splitlines()
    options = ("nodes=2", "gpus-per-node=2", "ntasks-per-node=1", "partition=a100")
    assert {f"#SBATCH --{option}" for option in options} <= {*lines}
    wait_until(lambda: finished(out))
    assert finished(out)["result"] == {"world_size": 4, "sum": 6.0}
    wait_until(lambda: len([*out.glob("rank*")]) == 4)
    assert [(out / f"rank{rank}").read_text() for rank in range(4)] == ["0", "0", "1", "1"]


def test_a_job_that_has_died_is_found_by_its_state_and_started_again(slurm):
    out = slurm / "run"
    job, pid = submit(out, starts=2, minutes=600)
    assert launch(*job, "slurm") is None  # it runs: not twice
    os.kill(pid, signal.SIGKILL)
    (slurm / "state").write_text("NODE_FAIL\n")  # as the scheduler says of a node that is lost
    assert submission_state(out) == "NODE_FAIL"
    cluster = Cluster(timeout_min=600, gpus_per_node=0, cpus_per_task=1)
    with pytest.warns(UserWarning, match=r"job 4242 .* \(state NODE_FAIL\); it is started again"):
        launch(*job, "slurm", cluster=cluster, wait=False)
    wait_until(lambda: finished(out))
    assert finished(out)["result"]["starts"] == 2
    assert json.loads((out / "submitted.json").read_text())["job_id"] == "4242"
