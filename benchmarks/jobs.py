#!/usr/bin/env python
"""What it costs that `run_jobs` starts two processes at each call and ends them with it.

The jobs only import what writes the world's shards: `python benchmarks/jobs.py --calls 4`
"""

import argparse
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from hypvl.data.jobs import run_jobs
from hypvl.data.world.writers import write_raw_shard


def idle(job: int) -> str:
    return f"{write_raw_shard.__name__} {job}"


def spent() -> tuple[float, float]:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), used.ru_utime + used.ru_stime


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=4)
    calls, jobs = parser.parse_args().calls, [(i,) for i in range(8)]
    begun = spent()
    for _ in range(calls):
        list(run_jobs(idle, jobs, 2, progress=False))
    between = spent()
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for _ in range(calls):
            list(pool.map(idle, *zip(*jobs)))
    ended = spent()
    for name, a, b in (("a pool each time", begun, between), ("one for all", between, ended)):
        print(f"{name}: {b[0] - a[0]:.1f} s, {b[1] - a[1]:.1f} CPU s of the processes")
