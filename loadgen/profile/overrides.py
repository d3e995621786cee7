"""What the command line changes in a profile: `--set KEY=VALUE` and its short forms."""

import datetime
import re
import tomllib
from typing import Any, Final, get_args

import msgspec

from loadgen.profile import EngineTarget, HttpTarget, Load, SimTarget
from loadgen.profile.decoding import show
from loadgen.profile.keys import assign, steps_of

_ASSIGNMENT: Final = re.compile(r'((?:"[^"]*"|[^"=])+)=(.*)', re.DOTALL)


_LOADS: Final = {str(load.__struct_config__.tag): load for load in get_args(Load)}


class Overrides(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line changes in a profile: short forms first, then `sets` in their order."""

    sets: tuple[str, ...] = ()
    """`KEY=VALUE`: the value is TOML where it reads as such, else text; `load.steps.0.rate` reaches into a list."""
    target: str | None = None
    """A server's URL: the target becomes `http`, and keeps the keys that the file's target has in common with it."""
    model: str | None = None
    """`target.model`, or that of the simulated engine."""
    rate: str | float | None = None
    """For a load that has one rate."""
    duration: str | None = None


def override(data: dict[str, Any], overrides: Overrides) -> list[str]:
    """Change the data in place. Returns one line for each change that is refused."""
    faults: list[str] = []
    default_target = "target" not in data
    if overrides.target is not None:
        data["target"] = _http_target(data.get("target"), overrides.target)
    if overrides.model is not None:
        target = data.get("target")
        kind = target.get("kind") if isinstance(target, dict) else None
        has_model = kind in (_kind(HttpTarget), _kind(EngineTarget))
        faults += assign(data, ["target", "model"] if has_model else ["target", "engine", "model"], overrides.model)
    for key, value in (("rate", overrides.rate), ("duration", overrides.duration)):
        if value is not None:
            faults += _set_load(data, key, value)
    for assignment in overrides.sets:
        faults += _set(data, assignment)
    # A file without a target means the default one, and so does a key set of it.
    if default_target and isinstance(data.get("target"), dict):
        data["target"].setdefault("kind", _kind(SimTarget))
    return faults


def _http_target(former: Any, url: str) -> dict[str, Any]:
    kept = dict(former) if isinstance(former, dict) else {}
    for kind in (SimTarget, EngineTarget):
        if kept.get("kind") == _kind(kind):
            for key in set(kind.__struct_fields__) - set(HttpTarget.__struct_fields__):
                kept.pop(key, None)
    return kept | {"kind": _kind(HttpTarget), "url": url}


def _set_load(data: dict[str, Any], key: str, value: str | float) -> list[str]:
    load = data.get("load")
    kind = load.get("kind") if isinstance(load, dict) else None
    chosen = _LOADS.get(kind) if isinstance(kind, str) else None
    if chosen is not None and key not in chosen.__struct_fields__:
        having = ", ".join(f'"{name}"' for name, load in _LOADS.items() if key in load.__struct_fields__)
        keys = [name for name in chosen.__struct_fields__ if key in name]
        instead = f"; did you mean {' and '.join(f'`load.{name}`' for name in keys)}?" if keys else ""
        return [f'load.{key} = {show(value)}: kind = "{kind}" has no {key} of its own; allowed for: {having}{instead}']
    return assign(data, ["load", key], value)


def _set(data: dict[str, Any], assignment: str) -> list[str]:
    match = _ASSIGNMENT.fullmatch(assignment)
    steps = steps_of(match[1].strip()) if match else None
    if match is None or steps is None:
        return [f"--set {show(assignment, assignment)}: allowed: KEY=VALUE such as load.rate=50"]
    return assign(data, steps, _toml_value(match[2]))


def _toml_value(text: str) -> Any:
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    is_value = list(read) == ["value"] and not isinstance(read["value"], datetime.date | datetime.time)
    return read["value"] if is_value else text


def _kind(target: type[msgspec.Struct]) -> str:
    return str(target.__struct_config__.tag)
