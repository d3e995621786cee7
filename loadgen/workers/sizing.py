"""How many worker processes a run needs, how many it can have, and whether the system lets it hold its connections."""

import math
import os
import resource
from pathlib import Path
from typing import Final

from loadgen.errors import RunFailure

STREAMS_PER_WORKER: Final = 256
"""A server's step wakes all streams of a worker at once; the last is read about streams x cost per event / 2 late
(256 x 25 us / 2 is 3 ms), which is error in TTFT and ITL."""
REQUESTS_PER_WORKER: Final = 1500
"""Requests per second that one worker starts and ends with room to spare."""
_DESCRIPTORS_BESIDE: Final = 128
"""Descriptors that a process needs for anything but its connections."""
_CGROUP_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


def usable_cpus(quota_file: Path = _CGROUP_QUOTA) -> int:
    """CPUs that this process may use at once: its affinity, and its cgroup's quota rounded up."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text().split()
    except (OSError, ValueError):
        return affinity
    return affinity if quota == "max" else max(1, min(affinity, math.ceil(int(quota) / int(period))))


def choose_processes(streams: float, rate: float, slots: int, cpus: int) -> int:
    """Workers for so many concurrent streams and requests per second: one CPU is left to the parent, if there are two.

    Never more workers than slots.
    """
    wanted = max(math.ceil(streams / STREAMS_PER_WORKER), math.ceil(rate / REQUESTS_PER_WORKER), 1)
    return min(wanted, max(1, cpus - 1), slots)


def ensure_descriptors(connections: int) -> None:
    """Raise the limit of open files so that a process may hold so many connections.

    Raises RunFailure, before anything starts, where the system's hard limit is below that.
    """
    needed = connections + _DESCRIPTORS_BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise RunFailure(
                f"workers.max_inflight = {connections} needs {needed} open files, and the system allows {hard}: "
                f"lower workers.max_inflight or raise the hard limit (ulimit -Hn)"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def slot_shares(slots: int, workers: int) -> list[int]:
    """Slots partitioned over workers as evenly as can be: 50 over 3 is 17, 17, 16."""
    return [slots // workers + (worker < slots % workers) for worker in range(workers)]
