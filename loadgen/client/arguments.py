"""The types of the calls' arguments. Pure: no I/O."""

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

Way = Literal["auto", "exact", "none"]
"""Where the log-probabilities of labels come from. `auto`: from the answer's own where they suffice, else by scoring;
`exact`: each label is scored; `none`: from nowhere."""

_TYPES: Final[dict[str, tuple[Any, str]]] = {
    "model": (str, "a text"),
    "base_url": (str, "a text"),
    "api_key": (str | None, "a text"),
    "timeout": (float, "a number of seconds"),
    "max_tokens": (int | None, "a whole number"),
    "temperature": (float | None, "a number"),
    "top_logprobs": (int, "a whole number"),
    "logprobs": (bool, "True or False"),
    "label_logprobs": (Way | None, "auto, exact or none"),
    "constrain_labels": (list[str] | None, "a list of texts"),
    "extra_body": (dict[str, Any] | None, "a mapping of names to values"),
    "completion": (str | None, "a text"),
    "text": (str, "a text"),
    "context": (str | None, "a text"),
    "add_special_tokens": (bool, "True or False"),
    "ids": (list[int], "a list of token ids"),
    "texts": (str | list[str], "a text or a list of texts"),
}


def check_arguments(**given: Any) -> None:
    """Raise ValueError, with an argument's name, where its value is of another type than that. No value is shown: it
    may be a key."""
    for name, value in given.items():
        kind, words = _TYPES[name]
        try:
            msgspec.convert(list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value, kind)
        except msgspec.ValidationError as error:
            place = str(error).partition(" - at `$")[2].rstrip("`")
            raise ValueError(f"{name}: must be {words}" + (f"; {name}{place} is none" if place else "")) from None


def bare_key(api_key: str | None) -> str | None:
    """A key without the space around it, such as the line end of the file that held it; None where nothing is left.

    Raises:
        ValueError: it cannot stand in a header.
    """
    key = (api_key or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ValueError("api_key: must be printable ASCII, in one line")
    return key or None
