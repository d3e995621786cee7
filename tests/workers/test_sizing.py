"""How many workers, and whether the system lets them hold their connections."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.workers.sizing import choose_processes, slot_shares, usable_cpus


def test_fifty_slots_over_three_workers_are_17_17_16():
    assert slot_shares(50, 3) == [17, 17, 16]


@given(st.integers(1, 10_000), st.integers(1, 64))
def test_shares_add_up_and_differ_by_at_most_one(slots, workers):
    shares = slot_shares(slots, workers)
    assert sum(shares) == slots
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize(
    ("streams", "rate", "slots", "cpus", "processes"),
    [
        (10, 10, 4096, 8, 1),  # little to do: one is enough
        (1000, 10, 4096, 8, 4),  # 1,000 streams at 256 a worker
        (10, 4000, 4096, 8, 3),  # 4,000 requests/s at 1,500 a worker
        (10_000, 10_000, 4096, 4, 3),  # a CPU is left to the parent
        (10_000, 10_000, 4096, 1, 1),
        (10_000, 10_000, 2, 8, 2),  # never more workers than slots
    ],
)
def test_auto_takes_as_many_workers_as_the_load_needs_and_the_cpus_allow(streams, rate, slots, cpus, processes):
    assert choose_processes(streams, rate, slots, cpus) == processes


@pytest.mark.parametrize(("text", "expected"), [("max 100000", None), ("150000 100000", 2), ("50000 100000", 1)])
def test_the_cgroups_quota_bounds_the_usable_cpus(tmp_path, text, expected):
    affinity = len(os.sched_getaffinity(0))
    quota = tmp_path / "cpu.max"
    quota.write_text(text)
    assert usable_cpus(quota) == (affinity if expected is None else min(affinity, expected))


def test_without_a_cgroup_the_affinity_decides(tmp_path):
    assert usable_cpus(tmp_path / "none") == len(os.sched_getaffinity(0))


def with_limits(soft: int, hard: int, connections: int) -> str:
    """What asking for so many connections does in a process of these limits: the soft limit after it, or the refusal.

    A process of its own, because a hard limit that was lowered cannot be raised again.
    """
    code = (
        "import resource\n"
        "from loadgen.errors import RunFailure\n"
        "from loadgen.workers.sizing import ensure_descriptors\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "try:\n"
        f"    ensure_descriptors({connections})\n"
        "    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
        "except RunFailure as error:\n"
        "    print(error)\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_limit_of_open_files_is_raised_where_the_connections_need_it():
    # 300 connections and 128 descriptors for everything else.
    assert with_limits(256, 1024, 300) == "428"
    assert with_limits(1024, 1024, 300) == "1024"


def test_more_connections_than_the_system_allows_are_refused_by_name():
    assert with_limits(256, 400, 300).startswith("workers.max_inflight = 300 needs 428 open files")
