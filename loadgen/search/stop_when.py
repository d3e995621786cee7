"""When a ramp has shown enough: what `load.stop_when` says of its last stretch."""

from typing import Final

from loadgen.judge.slo import MISSED, check
from loadgen.profile import Ramp, StopWhen
from loadgen.profile.slo import Slo
from loadgen.summary.summary import Stage

_FEWEST: Final = 20
"""Of fewer requests a share says nothing."""


def stop_reason(rule: StopWhen, slo: Slo | None, load: Ramp, stretch: Stage) -> str | None:
    """Why a ramp ends after a look at its last stretch, in a sentence with the rate that it had reached; None: it goes
    on.

    The stretch covers a range of rates, and its requests had to end before they could be looked at: where the ramp
    stops is a quick look and no measurement of a saturation rate.
    """
    for reason in (_slo_missed, _backlog_growing, _failing):
        words = reason(rule, slo, stretch)
        if words is not None:
            return f"at about {_rate_at(load, stretch):.3g}/s {words}"
    return None


def _slo_missed(rule: StopWhen, slo: Slo | None, stretch: Stage) -> str | None:
    if not rule.slo_missed or slo is None:
        return None
    for one in check(slo, [stretch]).checks:
        if one.outcome == MISSED:
            return f"the SLO on {' '.join(filter(None, (one.metric, one.percentile)))} was missed"
    return None


def _backlog_growing(rule: StopWhen, slo: Slo | None, stretch: Stage) -> str | None:
    if not rule.backlog_growing or not stretch.stationary.growing:
        return None
    return "the backlog grew, beyond the noise"


def _failing(rule: StopWhen, slo: Slo | None, stretch: Stage) -> str | None:
    books = stretch.window.books
    ended = books.completed + books.failures
    if rule.error_rate is None or ended < _FEWEST or books.failures < rule.error_rate * ended:
        return None
    return f"{books.failures} of {ended} requests failed"


def _rate_at(load: Ramp, stretch: Stage) -> float:
    """The rate (per second) in the middle of the stretch."""
    assert load.duration is not None
    middle = stretch.window.start + stretch.window.seconds / 2
    return load.start_rate + (load.end_rate - load.start_rate) * min(1.0, middle / load.duration.seconds)
