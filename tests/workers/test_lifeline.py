"""A worker that loses its parent, with real processes: nobody and nothing of its engine is left, however busy it is."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from loadgen.workers.lifeline import FOLDER_ENV, PARENT_ENV
from tests.kin import BEGIN_KIN, Roll, python

WORKER = (
    BEGIN_KIN
    + """
from loadgen.workers.lifeline import lifeline
roll, how = sys.argv[1:3]
with lifeline():
    sign(roll, "worker")
    begin_kin(roll, os.environ["LOADGEN_FOLDER"])
    if how == "busy":
        while True:
            pass
    elif how == "in order":  # when its channel closes
        os.read(0, 1)
    else:
        raise SystemExit("a fault")
"""
)
"""A worker with an engine: kin with sockets in its folder."""

PARENT = (
    BEGIN_KIN
    + """
roll, how, worker = sys.argv[1:4]
environment = {**os.environ, "LOADGEN_PARENT": str(os.getpid())}
subprocess.Popen(
    [sys.executable, "-c", worker, roll, how], stdin=subprocess.PIPE, start_new_session=True, env=environment
)
sign(roll, "parent")
signal.pause()
"""
)


@pytest.fixture
def roll(tmp_path):
    roll = Roll(tmp_path)
    yield roll
    roll.close()


@pytest.fixture
def folder(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="lg-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv(FOLDER_ENV, folder)
        yield Path(folder)


@pytest.mark.parametrize("how", ["busy", "in order"])
def test_nothing_is_left_of_a_worker_whose_parent_was_killed(how, roll, folder):
    parent = python(PARENT, roll.path, how, WORKER)
    roll.signed("parent", "worker", "near", "apart")
    assert {path.name for path in folder.iterdir()} == {"near", "apart"}
    parent.kill()
    parent.wait()
    roll.assert_all_gone()
    assert not folder.exists()


def test_a_parent_that_went_before_the_worker_began_is_missed_too(roll, folder):
    gone = python("pass")
    gone.wait()
    worker = python(WORKER, roll.path, "busy", start_new_session=True, env={**os.environ, PARENT_ENV: str(gone.pid)})
    roll.signed("worker")
    roll.assert_all_gone()
    assert worker.wait() == -9
    assert not folder.exists()


@pytest.mark.parametrize(("how", "status"), [("in order", 0), ("faulty", 1)])
def test_a_worker_that_ends_leaves_nothing_while_its_parent_lives(how, status, roll, folder):
    environment = {**os.environ, PARENT_ENV: str(os.getpid())}
    worker = python(WORKER, roll.path, how, stdin=subprocess.PIPE, start_new_session=True, env=environment)
    roll.signed("worker", "near", "apart") if how == "in order" else roll.signed("worker")
    worker.communicate()
    assert worker.returncode == status
    assert roll.has_ended()
    assert not folder.exists()


def test_a_worker_without_an_engine_has_no_lifeline():
    code = (
        "import threading\n"
        "from loadgen.workers.lifeline import lifeline\n"
        "with lifeline(): print(threading.active_count())"
    )
    environment = {name: value for name, value in os.environ.items() if name != FOLDER_ENV}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
