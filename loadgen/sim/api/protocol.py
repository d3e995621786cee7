"""What all bodies have in common: how they are read, and the errors that vLLM answers where they mean nothing."""

from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec

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
