"""The Triton kernels of the product contrast in Triton's interpreter, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_kernels_agree_with_loops_in_float64():
    pytest.importorskip("triton")
    program = Path(__file__).with_name("kernel_checks.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(program), "cpu"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "all parts agree" in done.stdout
