"""Time and memory of a measured process, the same for all scripts that compare forms."""

import time


def seconds_now(device):
    "Clock of a device: CPU time, or wall time when the GPU is done."
    import torch

    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def least_cpu_seconds(call, repeats):
    "Least CPU seconds of several calls."
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return min(seconds)


def peak_bytes(device):
    "Most memory that was ever in use."
    import resource

    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
