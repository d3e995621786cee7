"""A server's own words for what went wrong, from the error bodies that servers are known to send, cut to one line."""

import re
from typing import Any, Final

import msgspec

_MAX_LENGTH: Final = 400
_NOT_SHOWN: Final = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_TITLE: Final = re.compile(r"<title[^>]*>(.*?)</title>", re.DOTALL | re.IGNORECASE)


def one_line(text: str, limit: int = _MAX_LENGTH) -> str:
    """The text on one line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def words_of_body(body: bytes) -> str:
    """What the body of an error answer says: JSON, HTML or plain text; empty where it says nothing."""
    try:
        return one_line(words_of(msgspec.json.decode(body)))
    except msgspec.MsgspecError:
        text = body.decode(errors="replace")
    if title := _TITLE.search(text):
        return one_line(title[1])
    if text.lstrip().startswith("<"):
        text = _NOT_SHOWN.sub(" ", text)
    return one_line(text)


def words_of(error: Any) -> str:
    """What a decoded error says, be it a text, an object with a message, or a list of faults.

    Known shapes: `{"error": {"message", "param"}}`, `{"error": "text"}`, `{"object": "error", "message"}`,
    `{"detail": "text"}`, and `{"detail": [{"loc": [...], "msg"}]}`.
    """
    if isinstance(error, str):
        return error
    if isinstance(error, list):
        return "; ".join(filter(None, map(words_of, error)))
    if not isinstance(error, dict):
        return ""
    for key in ("error", "detail", "message", "msg"):
        if said := words_of(error.get(key)):
            return _with_place(said, error)
    return msgspec.json.encode(error).decode() if error else ""


def _with_place(said: str, error: dict[str, Any]) -> str:
    """Add the field that an error is about, where its words do not name it."""
    place = error.get("param") or error.get("loc")
    if isinstance(place, list):
        place = ".".join(map(str, place))
    return f"{said} ({place})" if isinstance(place, str) and place and place not in said else said
