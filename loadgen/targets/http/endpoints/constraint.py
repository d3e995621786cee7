"""Whether a server constrains an answer to labels, and by which field of the body: for a load and for single calls.

vLLM takes `structured_outputs` since 0.11. Servers before took `guided_choice`, which later ones ignore silently, with
a good status. So the field is chosen by the server's version, and tried once with a label that no model would say.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from loadgen.workload.request import Message

CURRENT: Final = "structured_outputs"
FORMER: Final = "guided_choice"
NO_CONSTRAINT: Final = "no_constraint"
"""The kind of failure of a server that does not constrain."""

TRIAL_MESSAGES: Final = (Message("user", "Say hello."),)
TRIAL_LABEL: Final = "qzxj"
UNWANTED: Final = ("ignore_eos", "min_tokens", CURRENT, FORMER)
"""What would let an answer go on after its label, or constrain it otherwise."""

_FIRST_WITH_CURRENT: Final = (0, 11)
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)")
_UNRELEASED: Final = (0, 1)
"""What a build from a source tree without its tags calls itself, whatever it is."""


class Refused(msgspec.Struct, frozen=True):
    """The server refused a trial's fields (status 400 or 422), in these words."""

    words: str


class Found(msgspec.Struct, frozen=True):
    """The field that constrains; None where none does, and why."""

    field: str | None
    reason: str = ""


def fields_for(field: str, labels: Sequence[str]) -> dict[str, Any]:
    """The body fields that allow these labels and nothing else."""
    return {field: {"choice": list(labels)} if field == CURRENT else list(labels)}


def fields_of_version(version: str | None) -> tuple[str, ...]:
    """The field that a server of this version takes; where the version says nothing, both, the likelier first."""
    found = _VERSION.match(version or "")
    if found is None or (int(found[1]), int(found[2])) == _UNRELEASED:
        return (CURRENT, FORMER)
    return (CURRENT,) if (int(found[1]), int(found[2])) >= _FIRST_WITH_CURRENT else (FORMER,)


def without_unwanted(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A body's fields without those that would spoil a constrained answer."""
    return {name: value for name, value in fields.items() if name not in UNWANTED}


async def find_constraint(version: str | None, say: Callable[[dict[str, Any]], Awaitable[str | Refused]]) -> Found:
    """Try the fields of this version in turn, up to the first that constrains.

    `say` sends `TRIAL_MESSAGES` with the fields it is given and returns the content of the answer. What else goes wrong
    it raises, and so does this.
    """
    reasons = []
    for field in fields_of_version(version):
        said = await say(fields_for(field, (TRIAL_LABEL,)))
        if isinstance(said, Refused):
            reasons.append(f"the server refuses {field}: {said.words}")
        elif said.strip() == TRIAL_LABEL:
            return Found(field)
        else:
            reasons.append(f"the server answers {said!r} where {field} allows {TRIAL_LABEL!r} only")
    return Found(None, "; ".join(reasons))
