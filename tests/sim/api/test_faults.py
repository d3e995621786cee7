"""Faults on purpose, over real HTTP, and the server as a process."""

import json
import signal
import subprocess
import sys
import urllib.request
from contextlib import asynccontextmanager

import aiohttp
import anyio
import pytest

from loadgen.sim.api.server import open_server, serve
from loadgen.sim.config import SimConfig, SimFaults

FAST = SimConfig(step_base_seconds=0.001)
BODY = {"prompt": "hello there", "max_tokens": 8, "ignore_eos": True}
PATH = "/v1/completions"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@asynccontextmanager
async def _session(**faults):
    async with open_server(FAST, SimFaults(**faults)) as server, aiohttp.ClientSession(server.url) as session:
        yield session


async def _statuses(session, count: int) -> list[int]:
    statuses = []
    for _ in range(count):
        async with session.post(PATH, json=BODY) as response:
            statuses.append(response.status)
    return statuses


@pytest.mark.anyio
async def test_errors_come_at_their_rate_in_a_pattern_that_the_seed_repeats():
    async with _session(error_rate=0.3, error_status=500) as session:
        first = await _statuses(session, 100)
    async with _session(error_rate=0.3, error_status=500) as session:
        assert await _statuses(session, 100) == first
    async with _session(error_rate=0.3, error_status=500, seed=1) as session:
        assert await _statuses(session, 100) != first
    assert set(first) == {200, 500}
    assert 15 <= first.count(500) <= 45  # 30 and more than three standard deviations of 4.6


@pytest.mark.anyio
@pytest.mark.parametrize(("status", "said"), [(429, "7"), (503, "7"), (500, None)])
async def test_an_error_says_when_to_come_back_where_it_may_and_is_asked_to(status, said):
    async with _session(error_rate=1.0, error_status=status, retry_after=7) as session:
        for path, body in ((PATH, BODY), ("/v1/embeddings", {"input": "a"}), ("/v1/messages", {})):
            async with session.post(path, json=body) as response:
                assert (response.status, response.headers.get("Retry-After")) == (status, said)
    async with _session(error_rate=1.0, error_status=status) as session, session.post(PATH, json=BODY) as response:
        assert "Retry-After" not in response.headers


def test_a_time_to_come_back_is_not_negative():
    with pytest.raises(ValueError, match="retry_after"):
        SimFaults(retry_after=-1)


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_an_aborted_answer_is_truncated_and_says_so(stream):
    body = BODY | {"stream": stream, "return_token_ids": True}
    async with _session(abort_rate=1.0) as session, session.post(PATH, json=body) as response:
        text = await response.text()
    assert text.count('"finish_reason":"abort"') == 1
    assert text.endswith("data: [DONE]\n\n") == stream
    events = [event.removeprefix("data: ") for event in text.split("\n\n")]
    answers = [json.loads(event) for event in events if event.startswith("{")]
    assert sum(len(answer["choices"][0]["token_ids"]) for answer in answers) == 4


@pytest.mark.anyio
async def test_a_disconnected_stream_ends_midway_without_an_end_marker():
    seen = bytearray()

    async def read(response: aiohttp.ClientResponse) -> None:
        async for data in response.content.iter_any():
            seen.extend(data)

    async with _session(disconnect_rate=1.0) as session, session.post(PATH, json=BODY | {"stream": True}) as response:
        with pytest.raises(aiohttp.ClientPayloadError):
            await read(response)
    assert 1 <= seen.count(b"data: ") <= 4
    assert b"DONE" not in seen
    assert b"stop" not in seen


@pytest.mark.anyio
async def test_a_disconnected_whole_answer_never_begins():
    async with _session(disconnect_rate=1.0) as session:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await _statuses(session, 1)


@pytest.mark.anyio
async def test_a_silent_server_answers_the_first_requests_and_accepts_the_others():
    async with _session(silent_after=2) as session:
        assert await _statuses(session, 2) == [200, 200]
        with anyio.move_on_after(0.2) as scope:
            await _statuses(session, 1)
        assert scope.cancelled_caught


@pytest.mark.anyio
async def test_rejected_fields_are_refused_by_name():
    async with _session(reject_fields=("ignore_eos",)) as session:
        async with session.post(PATH, json=BODY) as response:
            assert response.status == 400
            error = (await response.json())["error"]
        async with session.post(PATH, json={"prompt": "a"}) as response:
            assert response.status == 200
    assert error["param"] == "ignore_eos"
    assert "ignore_eos" in error["message"]


@pytest.mark.anyio
async def test_serve_tells_its_port_and_runs_until_cancelled():
    async with anyio.create_task_group() as group:
        ports = []
        listening = anyio.Event()

        def ready(port: int) -> None:
            ports.append(port)
            listening.set()

        async def run() -> None:
            await serve(FAST, ready=ready)

        group.start_soon(run)
        await listening.wait()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{ports[0]}") as session:
            assert await _statuses(session, 1) == [200]
        group.cancel_scope.cancel()


@pytest.mark.anyio
async def test_serve_refuses_a_key_that_is_not_there(monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ValueError, match="NO_SUCH_KEY"):
        await serve(FAST, api_key_env="NO_SUCH_KEY")


def _start(settings: bytes) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-m", "loadgen.sim.api.server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdin.write(settings + b"\n")
    process.stdin.flush()
    return process


@pytest.mark.parametrize("end", ["stdin", signal.SIGTERM, signal.SIGINT])
def test_the_process_serves_until_its_stdin_ends_or_it_is_told_to_stop(end):
    with _start(b'{"config": {"model": "mine"}}') as process:
        port = json.loads(process.stdout.readline())["port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models") as response:
            assert json.load(response)["data"][0]["id"] == "mine"
        if end == "stdin":
            process.stdin.close()
        else:
            process.send_signal(end)
        assert process.wait(5) == 0


def test_the_process_says_what_is_wrong_with_its_settings():
    with _start(b'{"config": {"block_size": 0}}') as process:
        assert process.wait(10) == 2
        assert b"block_size" in process.stderr.read()
