"""The path of a key in a profile, such as `load.steps[1].rate`, and putting a value there."""

import re
from collections.abc import Sequence
from typing import Any, Final

from loadgen.profile.decoding import join, looks_secret, show

_STEP: Final = re.compile(r'(?:^|(?<=.)\.)(?:"([^"]+)"|([A-Za-z0-9_-]+))|\[(\d+)\]')


def steps_of(path: str) -> list[str | int] | None:
    """The keys of a dotted path, list items in brackets as ints; None where it is no path."""
    steps: list[str | int] = []
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            return None
        steps.append(match[1] or match[2] or int(match[3]))
        position = match.end()
    return steps or None


def assign(data: dict[str, Any], steps: list[str | int] | list[str], value: Any) -> list[str]:
    """Put a value at a path, making the tables on the way that are missing. Returns one line for each fault."""
    node: Any = data
    path = ""
    for position, step in enumerate(steps):
        is_last = position == len(steps) - 1
        if isinstance(node, dict):
            key: str | int = str(step)
            if not is_last:
                node.setdefault(key, {})
        elif isinstance(node, list):
            if not str(step).isdecimal() or int(step) >= len(node):
                return [f"{join(path, str(step))}: allowed: items 0 to {len(node) - 1} of {path}"]
            key = int(step)
        else:
            return [f"{join(path, str(step))}: {path} = {show(node, path)} is not a table"]
        path = join(path, key)
        if is_last:
            node[key] = value
        else:
            node = node[key]
    return []


def holds_secret(steps: Sequence[str | int]) -> bool:
    """Whether the key at this path usually holds a secret; one that names the variable of a secret does not."""
    return any(looks_secret(str(step)) for step in steps) and steps != ["target", "api_key_env"]
