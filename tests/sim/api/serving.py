"""A simulated server for tests, and requests to it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from loadgen.sim.api.server import SimServer, open_server
from loadgen.sim.config import SimConfig, SimFaults

# Steps of 1 ms: fast, and still one event a token.
FAST = SimConfig(step_base_seconds=0.001, max_model_len=1024, num_kv_blocks=8192)
CHAT: dict[str, Any] = {"model": "sim", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 5}
COMPLETION: dict[str, Any] = {"model": "sim", "prompt": "hello there", "max_tokens": 5}
LENGTH = {"ignore_eos": True}


@asynccontextmanager
async def serving(
    config: SimConfig = FAST, faults: SimFaults | None = None
) -> AsyncIterator[tuple[SimServer, aiohttp.ClientSession]]:
    """A server and a client session on it."""
    async with open_server(config, faults) as server, aiohttp.ClientSession(server.url) as session:
        yield server, session


async def post(session: aiohttp.ClientSession, path: str, body: Any) -> tuple[int, Any]:
    """The status and the decoded answer."""
    async with session.post(path, json=body) as response:
        return response.status, json.loads(await response.text())


async def data_events(session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> list[Any]:
    """The data of a stream's events, decoded; the end marker, which must be there, is left out."""
    async with session.post(path, json=body | {"stream": True}) as response:
        assert response.status == 200
        *events, end, rest = (await response.text()).split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


async def named_events(session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> list[tuple[str, Any]]:
    """The names and the decoded data of a stream's events; such a stream has no end marker."""
    async with session.post(path, json=body | {"stream": True}) as response:
        assert response.status == 200
        *events, rest = (await response.text()).split("\n\n")
    assert rest == ""
    pairs = [event.split("\n") for event in events]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in pairs]
