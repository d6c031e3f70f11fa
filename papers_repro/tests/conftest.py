"""Fixtures of the end-to-end tests.

The repository, and one smoke reproduction that several tests look at.
"""

import json
import os
import subprocess
import sys
from multiprocessing import set_forkserver_preload
from pathlib import Path

import pytest

from hypvl.arguments import paper_packages

ROOT = Path(__file__).resolve().parents[2]
ENV = {
    **os.environ,
    "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    "MPLBACKEND": "Agg",
    "HF_HUB_OFFLINE": "1",
}

set_forkserver_preload(  # processes of tests begin with everything imported
    ["hypvl.training.loop", "hypvl.losses.objective", "hypvl.models.registry", "execnb.shell"]
    + [f"hypvl.papers.{name}.paper" for name in paper_packages()]
)


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="also run the tests that take minutes")
    parser.addoption("--chromium", action="store_true", help="also run the tests in a browser")


def pytest_configure(config):
    config.addinivalue_line("markers", "full: takes minutes; runs with --full")
    config.addinivalue_line("markers", "chromium: drives a page in a browser; runs with --chromium")
    config.addinivalue_line("markers", "data: needs the real data pack named by HYPVL_DATA")


LONGEST_FILES = (  # begun first, so that no process is left alone with one of them at the end
    *("test_ideas", "test_h2em", "test_phyclip", "test_agr", "test_visual_hierarchies"),
    *("test_devices", "test_training_faults", "test_draws", "test_every_paper", "test_syntax"),
    *("test_evaluate", "test_distributed", "test_slurm", "test_compare", "test_gpu_kernels"),
)


def pytest_collection_modifyitems(config, items):
    place = {name: at for at, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))
    wants_data = "data" in config.option.markexpr  # then a test whose data are absent fails
    for item in items:
        if item.get_closest_marker("full") and not config.getoption("--full"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: pytest --full"))
        if item.get_closest_marker("chromium") and not config.getoption("--chromium"):
            item.add_marker(pytest.mark.skip(reason="drives a browser: pytest --chromium"))
        without = item.get_closest_marker("data") and not os.environ.get("HYPVL_DATA")
        if without and not wants_data:
            item.add_marker(pytest.mark.skip(reason="needs real data: HYPVL_DATA=folder"))


def papermill(
    notebook: str, out: Path, timeout: int = 600, data: Path | None = None, **parameters
) -> subprocess.CompletedProcess:
    """Run a reproduction notebook as a user does, from the repository's root.

    `data` is a folder that holds its data, or takes them; None: one of its own. Its runs follow
    each other in the kernel, so no further process imports everything; `nbs/papers/803` tests runs
    side by side.
    """
    out.mkdir(parents=True, exist_ok=True)
    if data is not None:
        (out / "data").symlink_to(data)
    command = [sys.executable, "-m", "papermill", f"papers_repro/{notebook}", str(out / notebook)]
    command += "--no-progress-bar --log-level WARNING --stdout-file - --stderr-file -".split()
    for name, value in {"out": str(out), **parameters}.items():
        command += ["-p", name, str(value)]
    env = ENV | {"LOKY_MAX_CPU_COUNT": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout
    )


def plan(notebook: str, **parameters):
    """The study of a reproduction notebook, from its cells up to the plan, run in this process.

    The parameters are put in where papermill does.
    """
    namespace = {}
    for cell in json.loads((ROOT / "papers_repro" / f"{notebook}.ipynb").read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            continue
        exec(source, namespace)
        if "parameters" in cell["metadata"].get("tags", []):
            namespace |= parameters
        if ".plan(globals())" in source:
            return namespace["study"]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def smoke_data(tmp_path_factory) -> Path:
    "Data of preset smoke: made once, by the test that asks first, for all processes of pytest."
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "smoke_data"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def smoke(tmp_path_factory, smoke_data) -> Path:
    "The folder of `papermill papers_repro/phyclip.ipynb -p preset smoke`."
    out = tmp_path_factory.mktemp("smoke")
    done = papermill("phyclip.ipynb", out, data=smoke_data, preset="smoke")
    assert done.returncode == 0, done.stderr[-4000:]
    (out / "log.txt").write_text(done.stdout)
    return out
