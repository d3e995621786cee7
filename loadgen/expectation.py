"""What a profile would run, computed without running it, so that it can be checked before time is spent on it."""

import math
from typing import Any

import msgspec

from loadgen.load.stages import StagePlan, plan_stages
from loadgen.profile import Audio, Constant, EngineTarget, Gamma, Images, Offline, Poisson, Profile, Ramp
from loadgen.workload.lengths import mean_output, mean_prompt


class StageExpectation(msgspec.Struct, frozen=True, kw_only=True):
    """One stage. None stands where only the target's speed decides."""

    name: str
    kind: str
    requests: float | None
    """The expected number; in a closed loop that has both a number and a duration the largest."""
    seconds: float | None
    """How long the arrivals last: expected, and never more than the stage's `duration`."""
    drain_seconds: float
    """The longest time that requests are followed after the last arrival."""
    offered_rate: float | None = None
    concurrency: int | None = None


class EnginesExpectation(msgspec.Struct, frozen=True, kw_only=True):
    """The vLLM engines that a run builds, one in each worker process."""

    count: int
    model: str
    args: dict[str, Any]
    """As vLLM's `AsyncEngineArgs` get them."""


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run: the sums over its stages. None stands where only the target's speed decides."""

    stages: tuple[StageExpectation, ...]
    requests: float | None
    seconds: float | None
    """Of all arrivals, drains left out."""
    drain_seconds: float
    """The longest time that all drains together can add."""
    prompt_tokens: float
    """Mean of one request, as the workload asks for it (a chat template adds some)."""
    output_tokens: float | None
    """Mean of one request; None where the model ends by itself."""
    system: str | None = None
    images: Images | None = None
    audio: Audio | None = None
    """What each request has on top of its prompt tokens."""
    engines: EnginesExpectation | None = None
    """None where the target is of another kind."""

    @property
    def total_prompt_tokens(self) -> float | None:
        return None if self.requests is None else self.requests * self.prompt_tokens

    @property
    def total_output_tokens(self) -> float | None:
        if self.requests is None or self.output_tokens is None:
            return None
        return self.requests * self.output_tokens


def expected(profile: Profile) -> Expectation:
    """The stages, requests, tokens and time that this profile leads to; warm-up is part of all of them."""
    plans = plan_stages(profile.load)
    stages = tuple(_stage(plan) for plan in plans)
    return Expectation(
        stages=stages,
        requests=_sum([stage.requests for stage in stages]),
        seconds=_sum([stage.seconds for stage in stages]),
        drain_seconds=_drain_seconds(plans, stages),
        prompt_tokens=mean_prompt(profile.workload),
        output_tokens=mean_output(profile.workload),
        system=profile.workload.system,
        images=profile.workload.images,
        audio=profile.workload.audio,
        engines=_engines(profile, plans),
    )


def _engines(profile: Profile, plans: tuple[StagePlan, ...]) -> EnginesExpectation | None:
    """As many as there are workers: one where the profile does not say, and never more than there are slots."""
    target, processes = profile.target, profile.workers.processes
    if not isinstance(target, EngineTarget):
        return None
    slots = [profile.workers.max_inflight, *(plan.concurrency for plan in plans if plan.concurrency)]
    count = 1 if processes == "auto" else min(processes, *slots)
    return EnginesExpectation(count=count, model=target.model, args=target.engine_args)


def _stage(plan: StagePlan) -> StageExpectation:
    load, rate = plan.load, plan.offered_rate
    most = math.inf if load.requests is None else float(load.requests)
    seconds = math.inf if load.duration is None else load.duration.seconds
    requests = most if rate is None or math.isinf(seconds) else min(most, seconds * rate)
    match load:
        case Constant():
            # The first arrival is at 0, and one at `duration` is none any more; 1e-9 absorbs the product's rounding.
            requests = float(math.ceil(requests - 1e-9))
            seconds = min(seconds, most / load.rate)
        case Poisson() | Gamma():
            seconds = min(seconds, most / load.rate)
        case Ramp():
            seconds = _ramp_seconds(load, requests)
        case Offline():
            seconds = 0.0
    return StageExpectation(
        name=plan.name,
        kind=plan.kind,
        requests=_finite(requests),
        seconds=_finite(seconds),
        drain_seconds=load.drain.seconds,
        offered_rate=rate,
        concurrency=plan.concurrency,
    )


def _ramp_seconds(load: Ramp, requests: float) -> float:
    """The instant by which a ramp is expected to have made this many requests.

    Solves r0 t + s t^2/2 = n with s = (r1 - r0)/D, in the form that s = 0 and r0 = 0 leave whole.
    """
    assert load.duration is not None  # a ramp without one is no valid profile
    slope = (load.end_rate - load.start_rate) / load.duration.seconds
    under_root = max(load.start_rate**2 + 2 * slope * requests, 0.0)
    return min(2 * requests / (load.start_rate + math.sqrt(under_root)), load.duration.seconds)


def _drain_seconds(plans: tuple[StagePlan, ...], stages: tuple[StageExpectation, ...]) -> float:
    """Stages that drain before the next one add their drains; others drain while the next ones run."""
    total = left = 0.0
    for plan, stage in zip(plans, stages, strict=True):
        left = max(left - (stage.seconds or 0.0), stage.drain_seconds)
        if plan.drained:
            total, left = total + left, 0.0
    return total


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
