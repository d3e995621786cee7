"""How the simulated server's answers are sent."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

EVENT_STREAM: Final = {"Content-Type": "text/event-stream; charset=utf-8"}


def json_reply(value: Any, status: int = 200) -> web.Response:
    """An answer of JSON."""
    return body_reply(msgspec.json.encode(value), status)


def body_reply(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer of JSON that is encoded already."""
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


async def until_disconnected() -> None:
    """Wait for the cancellation that a handler gets when its client has gone."""
    await asyncio.Event().wait()


async def disconnect(request: web.Request) -> None:
    """Close the connection after what was written, with no end marker of the answer; never returns."""
    if request.transport is not None:
        request.transport.close()
    await until_disconnected()


def named_event(name: str, value: Any) -> bytes:
    """One event of this name with JSON as its data."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))
