"""What a profile would run, computed without running it, so that it can be checked before time is spent on it."""

import math
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.load.arrivals import expected as expected_arrivals
from loadgen.load.stages import StagePlan
from loadgen.profile import KINDS, Audio, EngineTarget, Images, Load, Profile, Saturate, Sweep, Workload
from loadgen.profile.decoding import encode
from loadgen.profile.grid import with_settings
from loadgen.runner.execution import processes_for
from loadgen.search.program import planned
from loadgen.workload.dataset import Row, read_rows
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


class DatasetExpectation(msgspec.Struct, frozen=True, kw_only=True):
    """The file that requests come from."""

    path: str
    rows: int
    order: str


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run: the sums over its stages. None stands where only the target's speed decides."""

    stages: tuple[StageExpectation, ...]
    requests: float | None
    seconds: float | None
    """Of all arrivals, drains left out."""
    drain_seconds: float
    """The longest time that all drains together can add."""
    prompt_tokens: float | None
    """Mean of one request, as the workload asks for it (a chat template adds some); None for the texts of a dataset."""
    output_tokens: float | None
    """Mean of one request; None where the model ends by itself."""
    system: str | None = None
    images: Images | None = None
    audio: Audio | None = None
    """What each request has on top of its prompt tokens."""
    search: str | None = None
    """Of a search, whose stages are not known beforehand: what it looks for, and within which time."""
    dataset: DatasetExpectation | None = None
    """None where requests are made up."""
    engines: EnginesExpectation | None = None
    """None where the target is of another kind."""

    @property
    def total_prompt_tokens(self) -> float | None:
        if self.requests is None or self.prompt_tokens is None:
            return None
        return self.requests * self.prompt_tokens

    @property
    def total_output_tokens(self) -> float | None:
        if self.requests is None or self.output_tokens is None:
            return None
        return self.requests * self.output_tokens


def expected(profile: Profile) -> Expectation:
    """The stages, requests, tokens and time that this profile leads to; warm-up is part of all of them.

    Raises:
        LoadgenError: its dataset cannot be read.
    """
    rows = read_rows(profile.workload) if profile.workload.dataset else ()
    plans = planned(profile) or ()
    stages = tuple(_stage(plan) for plan in plans)
    search = _search(profile.load)
    prompt_tokens = None if profile.workload.dataset else mean_prompt(profile.workload)
    output_tokens = _mean_output(profile.workload, rows)
    if any(axis.key.split(".")[0] == "workload" for axis in profile.sweep):
        workloads = [with_settings(encode(replace(profile, sweep=())), plan.settings).workload for plan in plans]
        prompt_tokens = _over_stages(stages, [None if one.dataset else mean_prompt(one) for one in workloads])
        output_tokens = _over_stages(stages, [None if one.dataset else mean_output(one) for one in workloads])
    return Expectation(
        stages=stages,
        search=search,
        requests=None if search else _sum([stage.requests for stage in stages]),
        seconds=None if search else _sum([stage.seconds for stage in stages]),
        drain_seconds=_drain_seconds(plans, stages),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        system=profile.workload.system,
        images=profile.workload.images,
        audio=profile.workload.audio,
        dataset=_dataset(profile.workload, rows),
        engines=_engines(profile, plans),
    )


def _over_stages(stages: tuple[StageExpectation, ...], means: list[float | None]) -> float | None:
    """The mean over the requests of all stages, where each stage's is known."""
    pairs = [(stage.requests, mean) for stage, mean in zip(stages, means, strict=True)]
    tokens = _sum([None if count is None or mean is None else count * mean for count, mean in pairs])
    requests = _sum([count for count, _ in pairs])
    return tokens / requests if tokens is not None and requests else None


def _dataset(workload: Workload, rows: tuple[Row, ...]) -> DatasetExpectation | None:
    if workload.dataset is None:
        return None
    return DatasetExpectation(path=workload.dataset.path, rows=len(rows), order=workload.dataset.order)


def _mean_output(workload: Workload, rows: tuple[Row, ...]) -> float | None:
    """Where rows say what they ask for, the mean over them; the others ask for the workload's."""
    common = mean_output(workload)
    if not rows or not KINDS[workload.kind].lengths_asked:
        return common
    total = _sum([common if row.output_tokens is None else float(row.output_tokens) for row in rows])
    return None if total is None else total / len(rows)


def _search(load: Load) -> str | None:
    if isinstance(load, Saturate):
        limit = f"{load.max_time.seconds:g} s"
        return f"a search for the highest {load.objective} that the target sustains, in at most {limit}"
    if isinstance(load, Sweep) and load.points is not None:
        return f"low load and the highest rate that the target completes are found first, then {load.points} rates"
    return None


def _engines(profile: Profile, plans: tuple[StagePlan, ...]) -> EnginesExpectation | None:
    """As many as there are workers."""
    target = profile.target
    if not isinstance(target, EngineTarget):
        return None
    return EnginesExpectation(count=processes_for(profile, plans), model=target.model, args=target.engine_args)


def _stage(plan: StagePlan) -> StageExpectation:
    load, process = plan.load, plan.arrivals
    if process is not None:
        requests, seconds = expected_arrivals(process)
    else:
        requests = math.inf if load.requests is None else float(load.requests)
        seconds = math.inf if load.duration is None else load.duration.seconds
    return StageExpectation(
        name=plan.name,
        kind=plan.kind,
        requests=_finite(requests),
        seconds=_finite(seconds),
        drain_seconds=load.drain.seconds,
        offered_rate=plan.offered_rate,
        concurrency=plan.concurrency,
    )


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
