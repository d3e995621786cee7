"""What all routes have in common: how bodies are read, the errors where they mean nothing, how answers are sent."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec
from aiohttp import web

from loadgen.sim.config import SimConfig

Body = TypeVar("Body")
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class ApiError(Exception):
    """An error answer in vLLM's shape."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "BadRequestError",
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.body = msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})
        self.headers = headers or {}
        """What is sent with the answer."""


def decode_body(body: bytes, decoder: msgspec.json.Decoder[Body]) -> Body:
    """Read a body.

    Raises:
        ApiError: 400, where it is no JSON, or a field is missing or of the wrong type.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise ApiError(400, f"1 validation error: {error}", "Bad Request") from None
    except msgspec.DecodeError as error:
        raise ApiError(400, f"1 validation error: JSON decode error: {error}", "Bad Request") from None


def refuse_fields(body: bytes, rejected: tuple[str, ...]) -> None:
    """Raise ApiError (400) where the body has one of these fields at its top level."""
    try:
        fields = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return  # told when the body is read in earnest
    for field in rejected:
        if isinstance(fields, dict) and field in fields:
            raise ApiError(400, f"Unrecognized request argument supplied: {field}", param=field)


def check_model(config: SimConfig, model: str | None) -> None:
    """Raise ApiError (404) for another model than the engine's; none named is the engine's."""
    if model is not None and model != config.model:
        raise ApiError(404, f"The model `{model}` does not exist.", "NotFoundError", "model")


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
