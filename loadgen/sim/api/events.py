"""Server-sent events that have a name."""

from typing import Any

import msgspec


def named_event(name: str, value: Any) -> bytes:
    """One event of this name with JSON as its data."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))
