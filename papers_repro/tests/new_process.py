"""A function in a process of its own that has imported everything, such as a notebook's run.

It is importable by the processes of the tests beside this file.
"""

import contextlib
import os
import sys
import traceback
from multiprocessing import get_context
from pathlib import Path

import torch
from execnb.nbio import mk_cell, read_nb, write_nb
from execnb.shell import CaptureShell

ROOT = Path(__file__).resolve().parents[2]


def _logged(log, function, arguments):
    "End with what a function returns as exit code; what it prints goes to a file."
    with log.open("w") as text:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            try:
                code = function(*arguments)
            except Exception:
                traceback.print_exc()
                code = 1
    sys.exit(code)


def in_new_process(function, *arguments, log, timeout=600):
    "Exit code of a process that calls a function, and what it has printed."
    process = get_context("forkserver").Process(target=_logged, args=(log, function, arguments))
    process.start()
    process.join(timeout)
    process.kill()
    return process.exitcode, log.read_text() if log.exists() else ""


def run_notebook(notebook, out, parameters):
    "Run all cells, parameters where papermill puts them, and write the notebook with outputs."
    os.chdir(ROOT)
    os.environ["LOKY_MAX_CPU_COUNT"] = "1"  # runs follow each other in this process
    torch.set_num_threads(1)
    nb = read_nb(ROOT / "papers_repro" / notebook)
    tagged = [i for i, c in enumerate(nb.cells) if "parameters" in c.metadata.get("tags", [])]
    given = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
    nb.cells.insert(tagged[0] + 1, mk_cell(given))
    shell = CaptureShell(mpl_format="png")
    try:
        shell.run_all(nb, exc_stop=True)
    except Exception:
        print(shell.prettytb(fname=notebook))
        return 1
    write_nb(nb, out / notebook)


def reproduce(notebook, out, data):
    "Preset smoke of a notebook below `out`, with the data of the folder `data`."
    out.mkdir(parents=True, exist_ok=True)
    (out / "data").symlink_to(data)
    parameters = {"preset": "smoke", "out": str(out)}
    code, output = in_new_process(run_notebook, notebook, out, parameters, log=out / "log.txt")
    assert code == 0, f"exit code {code} (-9: after ten minutes): {output[-4000:]}"
