"""When a server asks for patience: how long a refused request waits before it is sent again."""

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final

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
