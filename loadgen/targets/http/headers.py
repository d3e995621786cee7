"""The headers that a server gets with each request, and which of their values are secret."""

import os
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final

from multidict import CIMultiDict

from loadgen.errors import TargetError
from loadgen.profile import HttpTarget

_SECRET_PARTS: Final = ("auth", "key", "token", "secret", "cookie")
_MIN_SECRET: Final = 4
"""Shorter values keep no secret, and cutting them out would spoil a message."""


def headers_for(target: HttpTarget, authorization: str | None, api_key: str | None) -> CIMultiDict[str]:
    """The headers of every request: ours, a key's, and over them those of the profile.

    Raises:
        TargetError: the environment does not hold the API key that the target names.
    """
    headers = CIMultiDict({"Content-Type": "application/json", "Accept": "*/*", "Accept-Encoding": "identity"})
    if authorization is not None:
        headers["Authorization"] = authorization
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    elif target.api_key_env is not None:
        key = os.environ.get(target.api_key_env, "").strip()
        if not key:
            raise TargetError(f'target.api_key_env = "{target.api_key_env}": no such environment variable, or empty')
        headers["Authorization"] = f"Bearer {key}"
    headers.update(target.headers)
    return headers


def secret_values(headers: CIMultiDict[str]) -> tuple[str, ...]:
    """The values of headers that may be secret, and what follows a scheme such as `Bearer` in them; longest first."""
    values = [value.strip() for name, value in headers.items() if any(part in name.lower() for part in _SECRET_PARTS)]
    values += [value.partition(" ")[2].strip() for value in values]
    return tuple(sorted((value for value in values if len(value) >= _MIN_SECRET), key=len, reverse=True))


_PATIENCE: Final = frozenset({429, 503})


_UNTOLD_SECONDS: Final = 1.0
"""Where the server does not say how long."""


def seconds_to_wait(status: int, headers: Mapping[str, str]) -> float | None:
    """How long to wait by the `Retry-After` of an answer: seconds, or a date; None where its status asks for no retry.

    Without one that can be understood it is a second; a date that has passed is no wait.
    """
    if status not in _PATIENCE:
        return None
    told = headers.get("Retry-After", "").strip()
    if told.isdecimal():
        return float(told)
    try:
        return max(0.0, parsedate_to_datetime(told).timestamp() - time.time())
    except (ValueError, TypeError):
        return _UNTOLD_SECONDS
