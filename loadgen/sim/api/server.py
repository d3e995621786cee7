"""Serves the simulated vLLM over HTTP: in a task of the caller's, or as a process that dies with its parent.

`python -m loadgen.sim.api.server` reads one line of JSON (`ServerSettings`) on stdin, prints one line `{"port": n}`
when it listens, and ends at the end of stdin or on SIGTERM or SIGINT.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio
import msgspec
from aiohttp import web

from loadgen.sim.api.app import SimApi
from loadgen.sim.config import SimConfig, SimFaults
from loadgen.sim.engine.driver import make_engine

_BACKLOG: Final = 65_535  # the kernel clips it to its own limit
_KEEP_ALIVE_SECONDS: Final = 3600.0
_SHUTDOWN_SECONDS: Final = 0.1


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `python -m loadgen.sim.api.server` reads on stdin."""

    config: SimConfig = SimConfig()
    faults: SimFaults = SimFaults()
    host: str = "127.0.0.1"
    port: int = 0
    """0: a free one."""
    api_key_env: str | None = None
    """The name of the environment variable that holds the API key; None for a server without a key."""


class SimServer:
    """A server that is listening."""

    def __init__(self, api: SimApi, host: str, port: int) -> None:
        self.api = api
        """The routes, with the engine and the statistics."""
        self.port = port
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"


@asynccontextmanager
async def open_server(
    config: SimConfig | None = None,
    faults: SimFaults | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    api_key: str | None = None,
) -> AsyncIterator[SimServer]:
    """Serve while the context is open; asyncio only. On leaving, what is in flight is cut.

    Raises:
        OSError: the address cannot be listened on.
    """
    config, faults = config or SimConfig(), faults or SimFaults()
    async with make_engine(config, faults) as engine:
        api = SimApi(engine, config, faults, api_key=api_key)
        # With handler_cancellation a client that disconnects is aborted in the engine at once.
        runner = web.AppRunner(
            api.application(),
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port, backlog=_BACKLOG)
            await site.start()
            yield SimServer(api, host, runner.addresses[0][1])
        finally:
            with anyio.CancelScope(shield=True):
                await runner.cleanup()


async def serve(
    config: SimConfig | None = None,
    faults: SimFaults | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    api_key_env: str | None = None,
    ready: Callable[[int], None] | None = None,
) -> None:
    """Serve until cancelled; `ready` is called with the port once the server listens. asyncio only.

    Raises:
        OSError: the address cannot be listened on.
        ValueError: the environment variable named by `api_key_env` is not set.
    """
    api_key = _key_from(api_key_env)
    async with open_server(config, faults, host=host, port=port, api_key=api_key) as server:
        if ready is not None:
            ready(server.port)
        await anyio.sleep_forever()


def _key_from(api_key_env: str | None) -> str | None:
    if api_key_env is None:
        return None
    key = os.environ.get(api_key_env)
    if not key:
        raise ValueError(f"the environment variable {api_key_env} holds no API key")
    return key


async def _serve_until_stopped(settings: ServerSettings) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    # A thread, since stdin may be a file or a terminal, which event loops do not watch alike.
    threading.Thread(target=_at_end_of_stdin, args=(loop, task.cancel), daemon=True).start()
    try:
        await serve(
            settings.config,
            settings.faults,
            host=settings.host,
            port=settings.port,
            api_key_env=settings.api_key_env,
            ready=lambda port: print(f'{{"port": {port}}}', flush=True),
        )
    except asyncio.CancelledError:
        return


def _at_end_of_stdin(loop: asyncio.AbstractEventLoop, stop: Callable[[], object]) -> None:
    # Raw reads: a daemon thread inside sys.stdin would hold its lock when the interpreter ends.
    while os.read(0, 65_536):
        pass
    try:
        loop.call_soon_threadsafe(stop)
    except RuntimeError:  # the loop has ended already
        return


def _read_settings() -> ServerSettings:
    line = bytearray()
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return msgspec.json.decode(line or b"{}", type=ServerSettings)


def main() -> None:
    """The process: exit status 2 and one line on stderr for settings that cannot be served."""
    try:
        settings = _read_settings()
        if sys.platform == "win32":
            asyncio.run(_serve_until_stopped(settings))
        else:
            import uvloop

            uvloop.run(_serve_until_stopped(settings))
    except (OSError, ValueError, msgspec.DecodeError) as error:
        print(f"loadgen.sim.api.server: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
