"""Ending processes, with real ones: what came of them does not outlive them, and how they ended is said."""

import os
import signal
import sys
from pathlib import Path

import anyio
import psutil
import pytest

from loadgen.processes import Family, end_family, end_process, how_it_ended, members
from tests.kin import BEGIN_KIN, STUBBORN, Roll, python

MARK = "LOADGEN_TEST_FAMILY"


@pytest.fixture
def roll(tmp_path):
    roll = Roll(tmp_path)
    yield roll
    roll.close()


@pytest.fixture
def begin(tmp_path):
    """Begin the first of a family: a session of its own, and a variable that names it."""
    families = []

    def begin(code, *arguments):
        first = python(code, *arguments, start_new_session=True, env={**os.environ, MARK: str(tmp_path)})
        families.append(Family(first.pid, MARK, str(tmp_path)))
        return first, families[-1]

    yield begin
    for family in families:
        for process in members(family):
            process.kill()


def test_a_family_ends_after_its_first_was_killed_though_some_are_stubborn_and_some_went_their_own_way(roll, begin):
    first, family = begin(BEGIN_KIN + "sign(sys.argv[1], 'first'); begin_kin(sys.argv[1]); signal.pause()", roll.path)
    pids = roll.signed("first", "near", "apart")
    assert {process.pid for process in members(family)} == set(pids.values())
    assert os.getpgid(pids["apart"]) != first.pid
    first.kill()
    first.wait()
    end_family(family)
    assert roll.has_ended()
    assert members(family) == []


def test_who_ends_when_asked_is_not_killed(roll, begin, tmp_path):
    obliging = BEGIN_KIN + (
        "signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[2], 'w').write('in order'), sys.exit()));"
        "sign(sys.argv[1], 'obliging'); signal.pause()"
    )
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {obliging!r}, *sys.argv[1:]])"
    first, family = begin(code, roll.path, str(tmp_path / "said"))
    roll.signed("obliging")
    first.wait()
    end_family(family)
    assert roll.has_ended()
    assert (tmp_path / "said").read_text() == "in order"


def test_a_stranger_is_not_ended(roll, begin, tmp_path):
    stranger = python(STUBBORN, roll.path, "stranger", "", env={**os.environ, MARK: "another"})
    first, family = begin("pass")
    roll.signed("stranger")
    first.wait()
    end_family(family)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory has names in /dev/shm on Linux only")
def test_shared_memory_does_not_outlive_the_family(roll, begin, tmp_path):
    # Python's resource tracker removes it when those who use it are dead; killed with them, it could not.
    holder = BEGIN_KIN + (
        "from multiprocessing.shared_memory import SharedMemory; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "memory = SharedMemory(create=True, size=1 << 20); open(sys.argv[2], 'w').write(memory.name);"
        "sign(sys.argv[1], 'holder')\nwhile True: signal.pause()"
    )
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {holder!r}, *sys.argv[1:]])"
    first, family = begin(code, roll.path, str(tmp_path / "name"))
    roll.signed("holder")
    first.wait()
    memory = Path("/dev/shm") / (tmp_path / "name").read_text()
    assert any("resource_tracker" in " ".join(process.cmdline()) for process in members(family))
    assert memory.exists()
    end_family(family)
    assert not memory.exists()
    assert members(family) == []


def test_a_zombie_is_nobody(begin):
    first, family = begin("pass")
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie until it is waited for
    assert psutil.Process(first.pid).status() == psutil.STATUS_ZOMBIE
    assert members(family) == []
    first.wait()


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
def test_a_process_that_ignores_being_terminated_is_killed(anyio_backend, roll, monkeypatch):
    monkeypatch.setattr("loadgen.processes._PATIENCE_SECONDS", 0)
    monkeypatch.setattr("loadgen.processes._TERM_SECONDS", 0.1)

    async def main() -> int | None:
        process = await anyio.open_process([sys.executable, "-c", STUBBORN, roll.path, "stubborn", ""])
        await anyio.to_thread.run_sync(roll.signed, "stubborn")
        await end_process(process)
        return process.returncode

    assert anyio.run(main, backend=anyio_backend) == -signal.SIGKILL
    assert roll.has_ended()


@pytest.mark.parametrize(
    ("returncode", "logged", "lines", "words"),
    [
        (1, None, 1, "exit code 1"),
        (0, "", 5, "exit code 0"),
        (-9, "one\ntwo\n", 1, "signal SIGKILL; its last words: two"),
        (-15, "one\ntwo\nthree\n", 2, "signal SIGTERM; its last words: two | three"),
        (1, "only\n", 5, "exit code 1; its last words: only"),
        (1, "what it said\n  | \n  +------------\n\n", 1, "exit code 1; its last words: what it said"),
        # 5 lines of 200 letters are 1000, with 4 x 3 between them; 597 of them are left behind "...".
        (1, "x" * 200 + "\n" + ("y" * 200 + "\n") * 4, 5, None),
    ],
)
def test_an_end_is_told_in_words_with_the_last_that_was_logged(returncode, logged, lines, words, tmp_path):
    log = tmp_path / "log"
    if logged is not None:
        log.write_text(logged)
    said = how_it_ended(returncode, log, lines=lines)
    if words is not None:
        assert said == words
    else:
        tail = said.removeprefix("exit code 1; its last words: ")
        assert len(tail) == 600
        assert tail.startswith("...")
        assert tail.endswith("y" * 200)
