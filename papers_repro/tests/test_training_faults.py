"""What happens to a run when something breaks: processes, disks, clocks, batches, folders.

Runs that are to die are forked from a server that has imported everything, so an attempt takes
as long as its steps. Each test prints how many cases it has tried (`pytest -s`).
"""

import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from hypvl.config import from_dict
from hypvl.losses.contrast import Contrast
from hypvl.losses.objective import Objective, Schedule
from hypvl.training.checkpoint import CheckpointError, checkpoints, latest_checkpoint
from hypvl.training.config import TrainConfig
from hypvl.training.guard import TrainingDiverged
from hypvl.training.launch import LaunchError, finished, launch, run_job
from hypvl.training.loop import Trainer
from hypvl.training.metrics import read_metrics
from hypvl.training.update import make_accelerator

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)
from tiny_training import Batches, Died, Linear2, attempt, free_port, objective, trainer  # noqa: E402

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


def job(out, fault=None, **changes):
    "A folder with a job; `changes` are of its training config."
    out.mkdir(parents=True)
    config = dict(train=SETTINGS | changes, dropout=0.2, fault=fault)
    record = dict(function="tiny_training:train", config=config)
    (out / "job.json").write_text(json.dumps(record))
    return out


@pytest.fixture(scope="module")
def server():
    "Starts processes that have imported everything."
    return get_context("forkserver")


def start(server, out, *rank):
    "Begin the job of a folder."
    process = server.Process(target=attempt, args=(out, *rank))
    process.start()
    return process


def ended(process, seconds=240):
    "Exit status of a process that must end in time."
    process.join(seconds)
    status = process.exitcode
    if status is None:
        process.kill()
    return status


def words(out):
    "Last output of the processes of a folder."
    return [path.read_text() for path in sorted(out.glob("error_*.txt"))]


def steps_in(out):
    "The last step in the metrics of a run; 0 where it has none, or is about to write them anew."
    try:
        lines = (out / "run/metrics.csv").read_text().splitlines()[1:]
    except FileNotFoundError:
        return 0
    return int(lines[-1].split(",")[0]) if lines and lines[-1].split(",")[0] else 0


def assert_same_run(a, b):
    "Weights, averaged weights and metrics are equal to the last bit."
    for name in ("model", "ema"):
        x, y = (load_file(p / f"run/checkpoints/latest/{name}.safetensors") for p in (a, b))
        assert x.keys() == y.keys() and all(x[k].equal(y[k]) for k in x)
    x, y = (read_metrics(p / "run").drop(columns=["samples_per_s", "seconds"]) for p in (a, b))
    assert x.equals(y)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    "A run of twenty steps that nobody has disturbed."
    out = job(tmp_path_factory.mktemp("whole") / "job")
    run_job(out)
    return out


# --- processes that end


def test_twenty_steps_are_ten_and_a_kill_and_ten(whole, tmp_path):
    parts = job(tmp_path / "parts", dict(step=13, signal="SIGKILL"))
    killed = subprocess.run(
        [sys.executable, "-m", "hypvl.training.launch", "--job", str(parts)],
        env=ENV,
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert steps_in(parts) == 12  # the row of the step in which it died was not written
    run_job(parts)
    assert_same_run(whole, parts)
    assert read_metrics(parts / "run")["step"].tolist() == list(range(1, 21))


def disturb(server, out, number, rng, steps):
    "Send a signal at a moment of a random step; whether it came before the end."
    target = rng.randrange(steps_in(out), steps)
    process = start(server, out)
    while process.is_alive() and steps_in(out) < target:
        time.sleep(2e-3)
    time.sleep(rng.random() * 5e-3)
    if process.is_alive():
        os.kill(process.pid, number)
    status = ended(process)
    assert status in (0, -number, 128 + number), words(out)
    return status != 0


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.full)]
)
def test_ten_signals_at_random_moments_leave_the_uninterrupted_run(server, tmp_path, number):
    steps, rng = 120, random.Random(int(number))
    long, parts = (job(tmp_path / name, steps=steps, checkpoint_every=7) for name in "ab")
    ended(start(server, long))
    came = 0
    while came < 10:
        before = finished(parts)
        assert not before, f"the run had ended after {came} signals"
        room = steps * (came + 1) // 11  # a signal for each tenth of the run
        came += disturb(server, parts, number, rng, max(room, steps_in(parts) + 2))
    assert ended(start(server, parts)) == 0, words(parts)
    assert_same_run(long, parts)
    print(f"{number!r}: {came} signals")


def test_a_run_that_is_asked_to_stop_says_where_it_stands(server, tmp_path, whole):
    out = job(tmp_path / "job", dict(step=12, signal="SIGTERM"))
    assert ended(start(server, out)) == 128 + signal.SIGTERM
    assert words(out)[0].startswith("Interrupted: step 13 of 20: stop requested. The checkpoint")
    assert latest_checkpoint(out / "run/checkpoints").name == "step_0000013"
    assert not finished(out)
    run_job(out)
    assert_same_run(whole, out)


def test_ctrl_c_in_a_terminal_loses_no_step(tmp_path, whole):
    out = job(tmp_path / "job", dict(step=12, signal="SIGINT"))
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"from hypvl.training.launch import run_job; run_job({str(out)!r})"
    )
    command = [sys.executable, "-c", program]
    stopped = subprocess.run(command, env=ENV, capture_output=True, text=True)
    assert stopped.returncode == -signal.SIGINT, stopped.stderr
    assert "step 13 of 20: stop requested. The checkpoint of this" in stopped.stderr
    assert stopped.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert latest_checkpoint(out / "run/checkpoints").name == "step_0000013"
    run_job(out)
    assert_same_run(whole, out)


def pair(server, out):
    "Two processes that train together."
    port = free_port()
    return [start(server, out, rank, 2, port) for rank in range(2)]


@pytest.mark.parametrize("number", ["SIGKILL", "SIGSTOP"])
@pytest.mark.parametrize("rank", [0, 1])
def test_when_a_process_dies_or_hangs_the_other_stops_in_time(server, tmp_path, number, rank):
    fault = dict(step=7, signal=number, rank=rank)
    out = job(tmp_path / "job", fault, peer_timeout=4)
    processes = pair(server, out)
    begun = time.perf_counter()
    try:
        assert ended(processes[1 - rank]) == 1
        assert time.perf_counter() - begun < 200
    finally:
        for process in processes:
            process.kill()
            process.join()
    output = words(out)[0]
    assert output.startswith(
        f"ProcessLost: step 7, process {1 - rank} of 2: another process has died"
    )
    assert "has not responded for peer_timeout=4 s" in output and "start again to go on" in output
    assert latest_checkpoint(out / "run/checkpoints").name == "step_0000005"
    assert [ended(process) for process in pair(server, out)] == [0, 0], words(out)


def test_all_processes_stop_when_one_is_asked_to(server, tmp_path):
    outs = [job(tmp_path / "a", dict(step=7, signal="SIGTERM", rank=1)), job(tmp_path / "b")]
    assert [ended(process) for process in pair(server, outs[0])] == [143, 143]
    assert latest_checkpoint(outs[0] / "run/checkpoints").name == "step_0000008"
    for out in outs:
        assert [ended(process) for process in pair(server, out)] == [0, 0], words(out)
    assert_same_run(*outs)


def test_launch_ends_when_a_process_dies(tmp_path):
    config = dict(train=SETTINGS | dict(peer_timeout=5), dropout=0.2)
    config["fault"] = dict(step=7, signal="SIGKILL", rank=1)
    with pytest.raises(LaunchError, match="(?s)ended with code 1; the end of its log.txt.*SIGKILL"):
        launch("tiny_training:train", config, tmp_path / "job", "accelerate", 2, "cpu")


# --- disks

ON_A_DISK = """
set -e
mount -t tmpfs -o size=512k none "$1"
exec "$2" "$3" "$1"
"""


def on_a_small_disk(tmp_path, program):
    "What a Python program prints that has a disk of half a megabyte to itself, at sys.argv[1]."
    own, disk = ["unshare", "-rm"], tmp_path / "disk"
    disk.mkdir()
    mount = [*own, "mount", "-t", "tmpfs", "none", str(disk)]
    if not shutil.which("unshare") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk of our own cannot be mounted here")
    script = tmp_path / "program.py"
    script.write_text(program)
    done = subprocess.run(
        [*own, "bash", "-c", ON_A_DISK, "bash", str(disk), sys.executable, str(script)],
        env=ENV,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FULL = """
import errno, sys, torch
from hypvl.training.checkpoint import CheckpointError, checkpoints, load_checkpoint, save_checkpoint
folder = sys.argv[1] + '/checkpoints'
save_checkpoint(folder, 1, {'model': {'w': torch.ones(50_000)}}, {})
try: save_checkpoint(folder, 2, {'model': {'w': torch.ones(100_000)}}, {})
except CheckpointError as e: assert e.errno == errno.ENOSPC, e; print(e)
assert [p.name for p in checkpoints(folder)] == ['step_0000001']
assert load_checkpoint(folder + '/step_0000001').weights['model']['w'].sum() == 50_000
save_checkpoint(folder, 3, {'model': {'w': torch.ones(50_000)}}, {}, keep=1)
assert [p.name for p in checkpoints(folder)] == ['step_0000003']
"""


def test_a_full_disk_leaves_the_earlier_checkpoint(tmp_path):
    output = on_a_small_disk(tmp_path, FULL)
    assert "checkpoint of step 2: no room for 0.4 MB" in output
    assert "The checkpoint of step 1 is intact" in output


TROUBLED = """
import os, subprocess, sys, tempfile
from pathlib import Path
import torch
from tiny_training import make_accelerator, trainer
disk, settings = Path(sys.argv[1]), SETTINGS
places, ballast = str(disk / 'run/checkpoints'), disk / 'ballast'

def full(room):
    "Leave so many bytes."
    def strike(trainer, row):
        if row['step'] == 8:
            facts = os.statvfs(disk)
            ballast.write_bytes(bytes(facts.f_bavail * facts.f_bsize - room))
    return strike

def read_only(trainer, row):
    if row['step'] == 8:
        subprocess.run(['mount', '--bind', places, places], check=True)
        subprocess.run(['mount', '-o', 'remount,ro,bind', places], check=True)

def fit(out, *callbacks):
    t = trainer(dict(train=settings, dropout=.2), out, make_accelerator(device='cpu'), callbacks)
    t.fit()
    return t.model.state_dict()

straight = fit(Path(tempfile.mkdtemp()) / 'run')
for trouble in (full(0), full(12_288), read_only):
    subprocess.run(['rm', '-rf', disk / 'run'], check=True)
    try: fit(disk / 'run', trouble)
    except OSError as e: print(type(e).__name__, e)
    else: raise AssertionError('nothing happened')
    if trouble is read_only:
        subprocess.run(['umount', places], check=True)
    ballast.unlink(missing_ok=True)
    again = fit(disk / 'run')
    assert all(torch.equal(again[k], straight[k]) for k in straight)
    print('same weights')
"""


def test_a_disk_that_fails_in_a_run_costs_no_step(tmp_path):
    output = on_a_small_disk(tmp_path, TROUBLED.replace("SETTINGS", repr(SETTINGS)))
    output = output.splitlines()
    assert output[1::2] == 3 * ["same weights"], output
    assert "No space left on device" in output[0]  # not even for a row of the metrics
    intact = "The checkpoint of step 5 is intact"
    assert re.search(f"checkpoint of step 10: no room for .* {intact}; free some space", output[2])
    assert f"checkpoint of step 10: cannot write: Read-only file system. {intact};" in output[4]


# --- checkpoints that are cut


def cuts(path):
    "Each file of a checkpoint, and where to cut it."
    for name in ("model.safetensors", "ema.safetensors", "state.pt", "meta.json"):
        size = (path / name).stat().st_size
        for length in (None, 0, size // 2, size - 1):
            yield name, length


def test_a_cut_checkpoint_is_left_out_and_said(whole, tmp_path):
    cases = 0
    for name, length in cuts(whole / "run/checkpoints/latest"):
        out = tmp_path / f"{name}{length}"
        shutil.copytree(whole, out, symlinks=True)
        (out / "finished.json").unlink()
        path = out / "run/checkpoints/step_0000020" / name
        path.unlink() if length is None else os.truncate(path, length)
        with pytest.warns(UserWarning, match="damaged checkpoints are left out: step_0000020"):
            run_job(out)
        assert_same_run(whole, out)
        cases += 1
    print(f"{cases} cuts")


def test_where_all_checkpoints_are_cut_nothing_is_deleted(whole, tmp_path):
    out = tmp_path / "job"
    shutil.copytree(whole, out, symlinks=True)
    (out / "finished.json").unlink()
    for path in out.glob("run/checkpoints/step_*/state.pt"):
        os.truncate(path, 100)
    before = {path: path.stat().st_size for path in out.glob("run/checkpoints/**/*")}
    message = "every checkpoint is damaged .step_0000015, step_0000020.. Nothing was deleted"
    with pytest.warns(UserWarning), pytest.raises(CheckpointError, match=message):
        run_job(out)
    assert before == {path: path.stat().st_size for path in out.glob("run/checkpoints/**/*")}


def test_a_checkpoint_of_another_version_is_refused(whole, tmp_path):
    out = tmp_path / "job"
    shutil.copytree(whole, out, symlinks=True)
    (out / "finished.json").unlink()
    for path in out.glob("run/checkpoints/step_*/meta.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | dict(version=99)))
    with pytest.raises(CheckpointError, match="is of version 99, this code reads 3"):
        run_job(out)


# --- numbers that are none


class Spoilt(Batches):
    "One number of the eighth batch is not a number."

    def __init__(self, name, value):
        super().__init__(SETTINGS["batch_size"])
        self.name, self.value = name, value

    def batch(self, index):
        found = super().batch(index)
        if index == 7:
            found[self.name][3, 2] = self.value
        return found


def spoilt_trainer(out, loader=None, model=None, scaler=False, callbacks=()):
    "A trainer whose eighth step goes wrong."
    accelerator = make_accelerator(device="cpu")
    if scaler:
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10**6)
    loader = loader or Batches(SETTINGS["batch_size"])
    settings = from_dict(TrainConfig, SETTINGS)
    parts = model or Linear2(), objective(), loader, settings, out, accelerator
    return Trainer(*parts, callbacks)


@pytest.mark.parametrize("scaler", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["image", "box_image", "text", "box_text"])
def test_a_number_of_a_batch_that_is_none_stops_before_the_update(tmp_path, name, value, scaler):
    broken = spoilt_trainer(tmp_path, Spoilt(name, value), scaler=scaler)
    with pytest.raises(
        TrainingDiverged, match="step 7: loss is nan .* Batch and weights are saved"
    ):
        broken.fit()
    assert all(p.isfinite().all() for p in broken.model.parameters())
    assert latest_checkpoint(tmp_path / "checkpoints").name == "step_0000005"


def test_a_full_disk_does_not_hide_what_went_wrong(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    broken = spoilt_trainer(tmp_path, Spoilt("image", float("nan")))
    monkeypatch.setattr("hypvl.training.callbacks.save_replay", full)
    with pytest.raises(TrainingDiverged, match="step 7: loss is nan; .* No space .* Nothing was"):
        broken.fit()
    assert latest_checkpoint(tmp_path / "checkpoints").name == "step_0000005"


def breaks_the_gradient(value):
    "A model whose gradient is `value` in one number at the eighth step, its loss as ever."
    model, calls = Linear2(), []

    def hook(grad):
        calls.append(1)
        if len(calls) != 8:
            return grad
        grad = grad.clone()
        grad[0, 0] = value
        return grad

    model.image.weight.register_hook(hook)
    return model


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_no_number_stops_before_the_update(tmp_path, value):
    model = breaks_the_gradient(value)
    with pytest.raises(TrainingDiverged, match="step 7: norm of the gradient is (nan|inf)"):
        spoilt_trainer(tmp_path, model=model).fit()
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_with_a_loss_scale_such_an_update_is_left_out_and_the_scale_halved(tmp_path, value):
    model, seen = breaks_the_gradient(value), []

    def look(trainer, row):
        seen.append(trainer.model.image.weight.detach().clone())

    history = spoilt_trainer(tmp_path, model=model, scaler=True, callbacks=[look]).fit()
    assert history["loss_scale"].tolist() == [2.0**10] * 7 + [2.0**9] * 13
    assert torch.equal(seen[6], seen[7]) and not torch.equal(seen[7], seen[8])
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loss_scale_waits_while_every_row_rests(tmp_path, accumulate):
    rests = Objective([Contrast("image", "text")], {"contrast": Schedule(delay=3)})
    accelerator = make_accelerator(device="cpu")
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    settings = from_dict(TrainConfig, SETTINGS | dict(steps=6, accumulate=accumulate, warmup=0))
    loader, model = Batches(SETTINGS["batch_size"], pieces=accumulate), Linear2()
    before = model.image.weight.detach().clone()
    seen = []
    look = [lambda trainer, row: seen.append(torch.equal(before, trainer.model.image.weight))]
    Trainer(model, rests, loader, settings, tmp_path, accelerator, look).fit()
    assert seen == [True] * 3 + [False] * 3


# --- a run that is not the one that was begun


class OtherBatches(Batches):
    def identity(self):
        return {"class": "OtherBatches"}


def changed_trainer(out, change, **settings):
    "The trainer of the run with one thing changed."
    config = from_dict(TrainConfig, SETTINGS | settings)
    parts = dict(
        model=Linear2(),
        objective=objective(),
        loader=Batches(config.batch_size),
    )
    if change == "width":
        parts["model"].text = torch.nn.Linear(7, 4, bias=False)
    if change == "frozen":
        parts["model"].text.weight.requires_grad_(False)
    if change == "variant":
        parts["objective"] = objective("paper")
    if change == "data":
        parts["loader"] = OtherBatches(config.batch_size)
    accelerator = make_accelerator(device="cpu")
    callbacks = []
    if change == "die":

        def die(trainer, row):
            if row["step"] == 12:
                raise Died

        callbacks = [die]
    return Trainer(*parts.values(), config, out, accelerator, callbacks)


@pytest.mark.filterwarnings("ignore:loader")
@pytest.mark.parametrize(
    "change, settings, message",
    [
        ("", dict(lr=2e-2), "lr=0.01, now 0.02"),
        ("", dict(batch_size=16), "batch_size=8, now 16"),
        ("", dict(steps=30), "steps=20, now 30"),
        ("", dict(seed=1), "seed=0, now 1"),
        ("", dict(optimizer="sgd"), "optimizer=None, now 'sgd'"),
        ("width", {}, r"model.parameters.text.bias='\[4\]', now None"),
        ("frozen", {}, "model.frozen=None, now"),
        ("variant", {}, "objective.terms"),
        ("data", {}, "data.class='Batches', now 'OtherBatches'"),
    ],
)
def test_what_has_changed_is_not_continued(tmp_path, change, settings, message):
    with pytest.raises(Died):
        changed_trainer(tmp_path, "die").fit()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    with pytest.raises(ValueError, match=f"holds a run with .*{message}"):
        changed_trainer(tmp_path, change, **settings).fit()
    for path, content in before.items():
        assert path.read_bytes() == content, path
    assert len(changed_trainer(tmp_path, "").fit()) == 20  # the run itself goes on


# --- several at once, and clocks


def test_of_runs_on_one_folder_one_trains_and_the_others_are_refused(server, tmp_path):
    alone, shared = (job(tmp_path / name, steps=60) for name in "ab")
    ended(start(server, alone))
    processes = [start(server, shared) for _ in range(4)]
    statuses = [ended(process) for process in processes]
    assert 0 in statuses and set(statuses) <= {0, 1}
    for message in words(shared):
        assert "out: another run trains in" in message, message
    assert len(words(shared)) == statuses.count(1)
    assert_same_run(alone, shared)
    print(f"{statuses.count(0)} ended well, {statuses.count(1)} were refused")


def test_a_clock_that_is_set_back_changes_nothing(tmp_path, whole, monkeypatch):
    out = tmp_path / "job"
    job(out)
    config = json.loads((out / "job.json").read_text())["config"]

    def die(trainer, row):
        if row["step"] == 13:
            raise Died

    with pytest.raises(Died):
        trainer(config, out / "run", make_accelerator(device="cpu"), [die]).fit()
    real, calls = time.time, iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: real() - 86_400 - 60 * next(calls))
    for path in (out / "run").rglob("*"):
        age = 9e8 if path.name.startswith("step_0000010") else 0
        os.utime(path, (real() - age,) * 2, follow_symlinks=False)  # the newest looks oldest
    run_job(out)
    monkeypatch.undo()
    assert finished(out)["seconds"] >= 0
    table = read_metrics(out / "run")
    assert (table["samples_per_s"] > 0).all() and table["seconds"].is_monotonic_increasing
    assert_same_run(whole, out)
    assert [path.name for path in checkpoints(out / "run/checkpoints")] == [
        "step_0000015",
        "step_0000020",
    ]


# --- what stands beside checkpoints


class Saved(Linear2):
    "A model that writes itself, with room for so many saves."

    room, error = 100, OSError(errno.ENOSPC, "No space left on device")

    def save_pretrained(self, folder):
        self.room -= 1
        if self.room < 0:
            raise self.error
        Path(folder).mkdir(parents=True, exist_ok=True)
        torch.save(self.state_dict(), Path(folder) / "weights.pt")


def saving(out, room=100, error=Saved.error):
    "A trainer of such a model."
    model, settings = Saved(), from_dict(TrainConfig, SETTINGS)
    model.room, model.error = room, error
    return Trainer(model, objective(), Batches(settings.batch_size), settings, out)


@pytest.mark.parametrize(
    "error, seen, message",
    [
        (Saved.error, CheckpointError, "model of step 20: cannot write: .*No space .* is intact"),
        (SafetensorError("I/O error"), CheckpointError, "model of step 20: cannot write: I/O"),
        (RuntimeError("some tensors share memory"), RuntimeError, "share memory"),
    ],
)
def test_a_model_that_was_not_saved_is_saved_when_the_run_is_started_again(
    tmp_path, error, seen, message
):
    with pytest.raises(seen, match=message):
        saving(tmp_path, room=3, error=error).fit()  # the fourth is the last
    assert latest_checkpoint(tmp_path / "checkpoints").name == "step_0000020"
    earlier = torch.load(tmp_path / "model" / "weights.pt", weights_only=True)  # whole, and older
    again = saving(tmp_path)
    again.fit()
    saved = torch.load(tmp_path / "model" / "weights.pt", weights_only=True)
    for name, weight in again.model.state_dict().items():
        assert torch.equal(saved[name], weight)
    assert not torch.equal(earlier["image.weight"], saved["image.weight"])
    before = (tmp_path / "model" / "weights.pt").stat().st_mtime_ns
    saving(tmp_path).fit()  # finished: nothing is written
    assert (tmp_path / "model" / "weights.pt").stat().st_mtime_ns == before


def test_a_refused_call_leaves_no_trace_in_the_trainer(tmp_path):
    saving(tmp_path).fit()
    t = saving(tmp_path)
    with pytest.raises(ValueError, match="has done 20, got 5"):
        t.fit(steps=5)
    assert t.config.steps == 20 and t.step == 0
    fresh = t.fit(resume=False, steps=25)
    assert fresh["step"].iloc[0] == 1 and fresh["step"].iloc[-1] == 25


def test_checkpoints_that_were_put_aside_are_not_deleted(tmp_path):
    saving(tmp_path).fit()
    aside = []
    for path in sorted((tmp_path / "checkpoints").glob("step_*")):
        aside.append(path.rename(path.with_name(f"{path.name}.bak")))
    with pytest.raises(ValueError, match="holds step_0000015.bak, .* and no checkpoint to go on"):
        saving(tmp_path).fit()
    assert all(path.is_dir() for path in aside)
    saving(tmp_path).fit(resume=False)
    assert not any(path.exists() for path in aside)


def test_rows_that_rest_at_first_are_no_explosion(tmp_path):
    rests = Objective([Contrast("image", "text")], {"contrast": Schedule(delay=12)})
    settings = from_dict(TrainConfig, SETTINGS)
    history = Trainer(Linear2(), rests, Batches(settings.batch_size), settings, tmp_path).fit()
    assert history["loss"].iloc[-1] > 0 and history["step"].iloc[-1] == 20


def test_a_gradient_that_is_never_finite_ends_a_run_with_a_loss_scale(tmp_path):
    accelerator = make_accelerator(device="cpu")
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    model = Linear2()
    model.image.weight.register_hook(lambda grad: grad * torch.nan)
    settings = from_dict(TrainConfig, SETTINGS | dict(steps=60))
    batches = Batches(settings.batch_size)
    run = Trainer(model, objective(), batches, settings, tmp_path, accelerator)
    with pytest.raises(TrainingDiverged, match="norm of the gradient is nan at a loss scale of"):
        run.fit()


def test_a_best_column_of_text_is_refused(tmp_path):
    settings = from_dict(TrainConfig, SETTINGS | dict(best="guard"))
    run = Trainer(Linear2(), objective(), Batches(settings.batch_size), settings, tmp_path)
    with pytest.raises(ValueError, match="best: column 'guard' holds text, got"):
        run.fit()


def test_a_start_deletes_nothing_that_no_run_wrote(tmp_path):
    for name in ("model", "tensorboard"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.txt").write_text("years of work")
        with pytest.raises(ValueError, match=f"{name} but no run.json"):
            trainer(dict(train=SETTINGS), tmp_path, make_accelerator(device="cpu")).fit()
        assert (tmp_path / name / "mine.txt").read_text() == "years of work"
