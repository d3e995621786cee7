"""Which stages a run has: planned beforehand, or asked for one by one as a search goes.

A program is a pure function of the stages measured so far, so that the same measurements ask for the same stages: a
run that was killed is resumed, and a report made again, by asking it again.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from loadgen.load.stages import StagePlan, plan_stages
from loadgen.profile import Load, Profile, Saturate, Steps, Sweep, is_search
from loadgen.profile.grid import grid_points
from loadgen.profile.slo import Slo
from loadgen.search import saturate, sweep
from loadgen.summary.summary import SearchResult, Stage

_LONGEST_VALUE: Final = 40
"""So much of a swept value stands in the name of a stage."""

Program = Callable[[Sequence[Stage]], tuple[StagePlan, ...]]
"""From the stages measured so far, in order, the next ones, which are run without a pause; none: the run is over.

What it does not look at is not measured: the sequence it is given may be lazy.
"""


def program_of(profile: Profile) -> Program:
    """The program of a profile."""
    plans = planned(profile)
    if plans is not None:
        return partial(_in_turn, plans)
    if isinstance(profile.load, Saturate):
        return partial(_one_by_one, partial(saturate.next_stage, profile.load, profile.slo))
    assert isinstance(profile.load, Sweep)
    return partial(_one_by_one, partial(sweep.next_stage, profile.load))


def planned(profile: Profile) -> tuple[StagePlan, ...] | None:
    """All stages of a profile, in order; None where a search decides on them as it goes.

    Each point of a grid has the stages of its load. Of repeats all first ones come first, then all second ones: what
    changes slowly on the way, such as a warming machine, then falls on all conditions alike.
    """
    if is_search(profile.load):
        return None
    points = grid_points(profile)
    words = [_words(profile, point.settings) for point in points]
    times = [_repeats(point.profile.load) for point in points]
    plans: list[StagePlan] = []
    for repeat in range(1, max(times) + 1):
        for point, place, most in zip(points, words, times, strict=True):
            if repeat <= most:
                of_load = plan_stages(_given(point.profile.load))
                plans += [_placed(plan, point.settings, place, repeat if most > 1 else None) for plan in of_load]
    return tuple(plans)


def search_result(load: Load, slo: Slo | None, measured: Sequence[Stage], cut: str | None) -> SearchResult | None:
    """What the search of a load found; None where the load is no search.

    cut: what ended the run before the search was over, as `SearchResult.ended_by` names it; None where nothing did.
    """
    if isinstance(load, Saturate):
        return saturate.result(load, slo, measured, cut)
    if isinstance(load, Sweep) and load.points is not None:
        return sweep.result(load, measured, cut)
    return None


def _one_by_one(ask: Callable[[Sequence[Stage]], StagePlan | None], measured: Sequence[Stage]) -> tuple[StagePlan, ...]:
    plan = ask(measured)
    return () if plan is None else (plan,)


def _in_turn(plans: tuple[StagePlan, ...], measured: Sequence[Stage]) -> tuple[StagePlan, ...]:
    """The stages up to the next after which the target drains."""
    first = len(measured)
    if first >= len(plans):
        return ()
    last = next(i for i in range(first, len(plans)) if plans[i].drained)
    return plans[first : last + 1]


def _repeats(load: Load) -> int:
    return 1 if isinstance(load, Steps | Saturate) else load.repeat


def _given(load: Load) -> Any:
    assert not isinstance(load, Saturate)
    return load


def _words(profile: Profile, settings: dict[str, Any]) -> str:
    """A point of a grid on one line."""
    values = {axis.key: axis.values for axis in profile.sweep}
    return ", ".join(f"{key} = {_value_words(value, values[key])}" for key, value in settings.items())


def _value_words(value: Any, values: tuple[Any, ...]) -> str:
    """A value of an axis; of a long one the beginning, and which of the values it is."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    line = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    if len(line) <= _LONGEST_VALUE and line == text:
        return line
    return f"{line[:_LONGEST_VALUE]}… (value {values.index(value) + 1})"


def _placed(plan: StagePlan, settings: dict[str, Any], words: str, repeat: int | None) -> StagePlan:
    """A stage at a point of a grid, as one of several repeats, and named so that no other has its name."""
    name = plan.name if not words else f"{words}: {plan.name}"
    return replace(
        plan,
        name=name if repeat is None else f"{name} (repeat {repeat})",
        settings=settings,
        repeat=repeat,
    )
