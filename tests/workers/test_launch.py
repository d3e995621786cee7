"""Workers as processes, with real ones: what each is given, how long each may take to end, and that nothing is left."""

import json
import os
import signal
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from loadgen.workers.launch import LocalLauncher, NotStarted
from loadgen.workers.messages import Finish
from loadgen.workers.placement import Placement
from tests.kin import BEGIN_KIN, Roll

pytestmark = pytest.mark.anyio

WORKER = (
    BEGIN_KIN
    + """
import json, pathlib, anyio
from loadgen.workers.channel import ChannelClosed, SocketChannel
from loadgen.workers.messages import Finish, Hello
how, roll, notes = sys.argv[1:4]

async def main():
    host, _, port = os.environ["LOADGEN_CHANNEL"].rpartition(":")
    channel = SocketChannel(await anyio.connect_tcp(host, int(port)))
    sign(roll, "worker")
    pathlib.Path(notes, "environment").write_text(json.dumps(dict(os.environ)))
    if "kin" in how:
        begin_kin(roll, os.environ["LOADGEN_FOLDER"])
    worker = int(os.environ["LOADGEN_WORKER"])
    await channel.send(Hello(os.environ["LOADGEN_TOKEN"], worker, os.getpid()))
    if "stubborn" in how:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()
    try:
        await channel.receive()
        await channel.receive()  # the end of the channel, though it may have more to do
    except ChannelClosed:
        pass

if how == "mute":
    for line in range(8):
        print("line", line)
    raise SystemExit(7)
anyio.run(main)
if "slow" in how:
    os.write(pen, b"closing 0\\n")
    with open(pathlib.Path(notes, "go on")) as gate:  # until the test opens it
        gate.read()
    pathlib.Path(notes, "ended").write_text("in order")
"""
)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    """Real time: processes know no other."""
    return request.param


@pytest.fixture
def roll(tmp_path):
    roll = Roll(tmp_path)
    yield roll
    roll.close()


@pytest.fixture
def launcher(tmp_path, roll):
    """A launcher that listens, of workers that do as they are told by `how`."""

    @asynccontextmanager
    async def listening(how, *placements):
        command = [sys.executable, "-c", WORKER, how, roll.path, str(tmp_path)]
        async with LocalLauncher(tmp_path, placements, command=command).listening() as launcher:
            yield launcher

    return listening


@pytest.fixture
def impatient(monkeypatch):
    """No time between being asked to end and being killed."""
    monkeypatch.setattr("loadgen.processes._PATIENCE_SECONDS", 0)
    monkeypatch.setattr("loadgen.processes._TERM_SECONDS", 0)


async def signed(roll: Roll, *names: str) -> dict[str, int]:
    return await anyio.to_thread.run_sync(roll.signed, *names)


def inside(folder: str) -> set[str] | None:
    """The names in a folder; None where there is no folder."""
    return {path.name for path in Path(folder).iterdir()} if Path(folder).is_dir() else None


def environment_of(notes: Path) -> dict[str, str]:
    return json.loads((notes / "environment").read_text())


async def test_a_worker_with_an_engine_gets_its_gpus_a_folder_and_the_place_of_its_log(launcher, roll, tmp_path):
    gpus = [Placement({"CUDA_VISIBLE_DEVICES": str(number)}, engine=True) for number in range(2)]
    async with launcher("obliging", *gpus) as local, local.launch(1):
        environment = environment_of(tmp_path)
        assert environment["CUDA_VISIBLE_DEVICES"] == "1"
        assert environment["LOADGEN_WORKER_LOG"] == str(tmp_path / "worker-1.log")
        assert environment["LOADGEN_PARENT"] == str(os.getpid())
        folder = environment["VLLM_RPC_BASE_PATH"]
        assert inside(folder) == set()
        assert environment["LOADGEN_FOLDER"] == folder
    assert inside(folder) is None
    assert roll.has_ended()


async def test_a_folder_has_a_path_short_enough_for_sockets(launcher, tmp_path, monkeypatch):
    # A socket in it has 1 + 36 bytes more, and a socket's path at most 103 on some systems: 66 are left.
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    async with launcher("obliging", Placement(engine=True)) as local, local.launch(0):
        assert len(environment_of(tmp_path)["VLLM_RPC_BASE_PATH"]) <= 66


async def test_a_worker_without_an_engine_gets_none_of_it(launcher, tmp_path):
    async with launcher("obliging") as local, local.launch(0):
        ours = {"VLLM_RPC_BASE_PATH", "LOADGEN_FOLDER", "LOADGEN_PARENT", "LOADGEN_WORKER_LOG"}
        assert not ours & environment_of(tmp_path).keys()


@pytest.mark.parametrize("placement", [Placement(), Placement(engine=True)], ids=["http", "engine"])
async def test_a_worker_begins_a_process_group_but_no_session(launcher, placement):
    # The group keeps the terminal's Ctrl-C from it. In a session of its own Linux would give it a share of the CPUs of
    # its own, smaller than its part of the parent's beside a server that is busy.
    async with launcher("obliging", placement) as local, local.launch(0) as incarnation:
        assert os.getpgid(incarnation.pid) == incarnation.pid
        assert os.getsid(incarnation.pid) == os.getsid(0)


async def test_nothing_is_left_of_an_engine_whose_worker_was_killed(launcher, roll, tmp_path):
    async with launcher("kin", Placement(engine=True)) as local, local.launch(0) as incarnation:
        pids = await signed(roll, "worker", "near", "apart")
        assert incarnation.pid == pids["worker"]
        folder = environment_of(tmp_path)["LOADGEN_FOLDER"]
        assert inside(folder) == {"near", "apart"}
        os.kill(incarnation.pid, signal.SIGKILL)
        assert await incarnation.ended() == "signal SIGKILL"
    assert roll.has_ended()
    assert inside(folder) is None


async def test_nothing_is_left_of_an_engine_whose_run_is_cancelled(launcher, roll, tmp_path, impatient):
    with anyio.CancelScope() as scope:
        async with launcher("kin stubborn", Placement(engine=True)) as local, local.launch(0):
            await signed(roll, "worker", "near", "apart")
            scope.cancel()
            await anyio.sleep_forever()
    assert roll.has_ended()
    assert inside(environment_of(tmp_path)["LOADGEN_FOLDER"]) is None


async def test_an_engine_that_was_told_to_finish_may_take_its_time(launcher, roll, tmp_path, impatient):
    os.mkfifo(tmp_path / "go on")

    async def let_it_go_on():
        await signed(roll, "closing")
        await anyio.to_thread.run_sync((tmp_path / "go on").write_text, "")

    async with anyio.create_task_group() as tasks, launcher("slow", Placement(engine=True)) as local:
        async with local.launch(0) as incarnation:
            tasks.start_soon(let_it_go_on)
            incarnation.finishing = True
            await incarnation.channel.send(Finish())
            await incarnation.channel.send(Finish())
        assert (tmp_path / "ended").read_text() == "in order"
    assert roll.has_ended()


async def test_a_run_that_is_cancelled_does_not_wait_for_what_finishes(launcher, roll, tmp_path, impatient):
    os.mkfifo(tmp_path / "go on")  # which nobody opens

    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks, launcher("slow", Placement(engine=True)) as local:

            async def cancel():
                await signed(roll, "closing")
                scope.cancel()

            async with local.launch(0) as incarnation:
                tasks.start_soon(cancel)
                incarnation.finishing = True
                await incarnation.channel.send(Finish())
                await incarnation.channel.send(Finish())
    assert scope.cancelled_caught
    assert roll.has_ended()
    assert not (tmp_path / "ended").exists()


@pytest.mark.parametrize(
    ("placement", "words"),
    [(Placement(), "line 7"), (Placement(engine=True), "line 3 | line 4 | line 5 | line 6 | line 7")],
)
async def test_a_worker_that_does_not_start_is_quoted_and_an_engine_at_greater_length(
    launcher, tmp_path, placement, words
):
    async with launcher("mute", placement) as local:
        with pytest.raises(NotStarted) as refused:
            async with local.launch(0):
                pass
    assert str(refused.value) == f"worker 0 did not start: exit code 7; its last words: {words}"
