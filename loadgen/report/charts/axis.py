"""What the stages of a run are drawn against, and which of them belong to one line."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from loadgen.report.points import setting_keys
from loadgen.report.tables import setting_text
from loadgen.summary.summary import Stage

_LOADS: Final = frozenset({"load.rate", "load.concurrency"})
"""Swept keys that are the load itself."""


class Curve(msgspec.Struct, frozen=True):
    """The stages of one combination of the other keys ("" where there is one only), by their place along the axis."""

    label: str
    stages: list[Stage]
    x: list[float]


class Axis(msgspec.Struct, frozen=True):
    """`word` says what is along the axis in a caption; `is_rate` that it is requests per second."""

    title: str
    word: str
    curves: list[Curve]
    is_rate: bool = False
    note: str = ""

    @property
    def stages(self) -> list[Stage]:
        return [stage for curve in self.curves for stage in curve.stages]

    @property
    def x(self) -> list[float]:
        return [x for curve in self.curves for x in curve.x]


def axis_of(stages: Sequence[Stage], objective: str | None = None) -> Axis:
    """The rates if the stages differ in them, else the slots of closed loops, else the swept numeric key with the most
    values, else the number of the stage.

    objective: of a search, `rate` or `concurrency`: what it sought is along the axis.

    Where rates are along the axis a stage of a closed loop stands at the rate that it completed. Stages that have no
    place along the axis are left out.
    """
    rates = {stage.offered_rate for stage in stages} - {None}
    slots = {stage.intended_concurrency for stage in stages} - {None}
    if objective == "rate" or (objective is None and len(rates) > 1):
        return _rates(stages)
    if objective == "concurrency" or len(slots) > 1:
        return Axis(
            "slots of the closed loop", "concurrency", _curves(stages, [_slots(stage) for stage in stages], _LOADS)
        )
    numeric = {key: count for key in setting_keys(stages) if (count := len(_numbers(stages, key))) > 1}
    if numeric:
        key = max(numeric, key=lambda name: numeric[name])
        values = [_number(stage.settings.get(key)) for stage in stages]
        return Axis(setting_keys(stages)[key], setting_keys(stages)[key], _curves(stages, values, {key}))
    return Axis("stage", "stage", _curves(stages, [float(place) for place in range(1, len(stages) + 1)], None))


def _rates(stages: Sequence[Stage]) -> Axis:
    values = [_rate(stage) for stage in stages]
    loops = any(stage.offered_rate is None and value is not None for stage, value in zip(stages, values, strict=True))
    note = " Stages of a closed loop stand at the rate that they completed." if loops else ""
    return Axis("offered requests/s", "offered load", _curves(stages, values, _LOADS), is_rate=True, note=note)


def _rate(stage: Stage) -> float | None:
    if stage.offered_rate is not None:
        return stage.offered_rate
    completed = stage.throughput.requests
    return completed if stage.intended_concurrency is not None and completed > 0 else None


def _slots(stage: Stage) -> float | None:
    return None if stage.intended_concurrency is None else float(stage.intended_concurrency)


def _numbers(stages: Sequence[Stage], key: str) -> set[float]:
    return {value for stage in stages if (value := _number(stage.settings.get(key))) is not None}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _curves(stages: Sequence[Stage], x: Sequence[float | None], along: frozenset[str] | set[str] | None) -> list[Curve]:
    """The stages by their settings but for the keys `along` the axis (None: all of them are), each curve by its x."""
    names = setting_keys(stages)
    others = [] if along is None else [key for key in names if key not in along]
    found: dict[str, list[tuple[float, Stage]]] = {}
    for stage, place in zip(stages, x, strict=True):
        if place is not None:
            parts = [f"{names[key]} {setting_text(stage.settings[key])}" for key in others if key in stage.settings]
            found.setdefault(", ".join(parts), []).append((place, stage))
    curves = []
    for label, members in found.items():
        ordered = sorted(members, key=lambda member: member[0])
        curves.append(Curve(label, [stage for _, stage in ordered], [place for place, _ in ordered]))
    return curves if len(curves) > 1 else [Curve("", curve.stages, curve.x) for curve in curves]
