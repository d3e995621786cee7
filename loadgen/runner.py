"""One run, from a profile to its files: check the target, start the workers, run the stages, summarise.

`run` is the whole of it; `run_stages` is the part that measures, on any clock.
"""

import os
import platform
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio
from msgspec.structs import replace

import loadgen
from loadgen.clock import Clock, MonotonicClock
from loadgen.decoding import encode
from loadgen.errors import Interrupted, ProfileError, RunFailure, innermost, one_failure
from loadgen.load.arrivals import Schedule
from loadgen.load.halt import Halt
from loadgen.load.producer import Producer
from loadgen.load.stages import StagePlan, plan_stages
from loadgen.metrics.journal import RunEnd, RunHeader, StageEnd, StageMeta
from loadgen.metrics.recorder import Recorder
from loadgen.metrics.summarise import summarise
from loadgen.metrics.summary import Live, Summary
from loadgen.profile import EngineTarget, Profile
from loadgen.profile_file import check_environment, run_dir, write_profile
from loadgen.report.files import write_files
from loadgen.targets.base import TargetInfo
from loadgen.targets.kinds import Checked, checked_target, patience_with
from loadgen.units import NS_PER_MS, NS_PER_SECOND
from loadgen.workers.launch import Launcher, LocalLauncher
from loadgen.workers.messages import Setup, StageStart, Stop
from loadgen.workers.placement import count_gpus, placements
from loadgen.workers.pool import Pool
from loadgen.workers.sizing import choose_processes, ensure_descriptors, slot_shares, usable_cpus
from loadgen.workload.lengths import mean_output
from loadgen.workload.sources import workload_nonce

LEAD_NS: Final = 100 * NS_PER_MS
"""From the start of a stage to its first possible arrival: time for the workers to learn of it."""
_ABORT_CHECK_NS: Final = 100 * NS_PER_MS
_SECONDS_PER_OUTPUT_TOKEN: Final = 0.025
"""A guess, for choosing the number of workers: what users accept between tokens."""

Watch = Callable[[Callable[[], Live | None]], Coroutine[Any, Any, None]]
"""Shows what a run is doing, from the start of its workers to their end, until it is cancelled. It is given what to
read: None until the first stage begins."""


async def run(
    profile: Profile,
    directory: Path | None = None,
    *,
    halt: Halt | None = None,
    watch: Watch | None = None,
) -> Summary:
    """Run a profile and leave its files in `directory` (by default where `output.dir` says).

    Cancelling it ends the workers at once and leaves the journal as it is; `halt` ends the run in order.

    Raises:
        ProfileError: the profile cannot be run here (a secret's variable is not set, the directory is taken).
        TargetError: the target cannot be loaded; nothing was measured.
        RunFailure: no worker could be started.
        Interrupted: `halt` was asked for before the load began.
    """
    halt = halt or Halt()
    with one_failure():
        faults = check_environment(profile) + _slot_faults(profile)
        if faults:
            raise ProfileError(profile.name, faults)
        ensure_descriptors(profile.workers.max_inflight)
        placed = placements(profile, processes_for(profile, plan_stages(profile.load)), os.environ, count_gpus())
        directory = run_dir(profile) if directory is None else directory
        clock = MonotonicClock()
        nonce = workload_nonce(profile.workload)
        profile = _with_nonce(profile, nonce)
        summary: Summary | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_end_what_has_not_begun, halt, tasks.cancel_scope)
            async with checked_target(profile, clock) as checked:
                _claim(directory)
                write_profile(profile, directory / "profile.toml")
                try:
                    with one_failure():
                        launcher = LocalLauncher(directory, placed)
                        async with launcher.listening():
                            await measure(
                                profile, checked, launcher, clock, directory, halt=halt, nonce=nonce, watch=watch
                            )
                except RunFailure:
                    if not halt.begun:
                        raise
                    # What ended the run early stands in its journal, and so in the verdict.
                summary = summarise(directory)
                write_files(summary, directory, profile.output.formats)
            tasks.cancel_scope.cancel()
        if summary is None:
            raise Interrupted("interrupted before the load began")
        return summary


async def _end_what_has_not_begun(halt: Halt, scope: anyio.CancelScope) -> None:
    await halt.asked()
    if not halt.begun:
        scope.cancel()


async def measure(
    profile: Profile,
    checked: Checked,
    launcher: Launcher,
    clock: Clock,
    directory: Path,
    *,
    halt: Halt,
    nonce: int,
    watch: Watch | None = None,
) -> None:
    """Run all stages against a checked target, with the journal in `directory`. On any launcher and clock."""
    plans = plan_stages(profile.load)
    header = RunHeader(
        name=profile.name,
        started_at=datetime.now(UTC).astimezone().isoformat(timespec="seconds"),
        base_wall_seconds=time.time(),
        base_monotonic_ns=clock.now_ns(),
        profile=encode(profile),
        environment=environment(checked.info),
        warnings=list(checked.info.warnings),
    )
    recorder = Recorder(
        directory, header, hlog="hlog" in profile.output.formats, records=profile.output.records, clock=clock
    )
    began_cpu_ns, began_ns = time.process_time_ns(), clock.now_ns()
    exhausted_ns = 0
    failure: str | None = None
    try:
        pool = Pool(
            launcher,
            _setups(profile, checked, plans, nonce),
            recorder,
            clock,
            max_restarts=profile.workers.max_restarts,
            fail=lambda why: halt.ask("failure", why),
            patience=patience_with(profile.target),
        )
        async with anyio.create_task_group() as tasks:
            watching = anyio.CancelScope()
            if watch is not None:
                tasks.start_soon(_watch_within, watching, watch, recorder)
            async with pool.running():
                halt.begun = True
                producer = Producer(pool, recorder, clock, halt, lookahead_ns=profile.workers.lookahead)
                await run_stages(plans, producer, pool, recorder, clock, halt, seed=profile.workload.seed)
                exhausted_ns = producer.credits_exhausted_ns
                watching.cancel()  # nothing is measured any more, but an engine may take its time to end
    except BaseException as error:
        failure = str(innermost(error)) or type(innermost(error)).__name__
        raise
    finally:
        wall_ns = max(1, clock.now_ns() - began_ns)
        recorder.run_ended(
            RunEnd(
                interrupted=halt.reason == "interrupted",
                parent_cpu=(time.process_time_ns() - began_cpu_ns) / wall_ns,
                credits_exhausted_ns=exhausted_ns,
                warnings=[f"load.abort_when ended the run: {halt.message}."] if halt.reason == "abort_when" else [],
                failure=failure or (halt.message if halt.reason == "failure" else None),
            )
        )
        recorder.close()


async def _watch_within(scope: anyio.CancelScope, watch: Watch, recorder: Recorder) -> None:
    with scope:
        await watch(recorder.live)


async def run_stages(
    plans: tuple[StagePlan, ...],
    producer: Producer,
    pool: Pool,
    recorder: Recorder,
    clock: Clock,
    halt: Halt,
    *,
    seed: int,
) -> None:
    """Run the stages in order. Stages that are not drained follow each other without a pause."""
    first = 0
    while first < len(plans) and halt.reason is None:
        last = next(i for i in range(first, len(plans)) if plans[i].drained)
        origin_ns = clock.now_ns() + LEAD_NS
        async with anyio.create_task_group() as tasks:
            for stage in range(first, last + 1):
                schedule = producer.schedule(stage, plans[stage], origin_ns, seed)
                run_one = StageRunner(stage, plans[stage], len(plans), producer, pool, recorder, clock, halt)
                tasks.start_soon(run_one.run, origin_ns, schedule)
                if schedule is not None:
                    origin_ns = schedule.end_ns
        first = last + 1


class StageRunner:
    """Runs one stage: announces it, has it produced, stops it, sees it drained, and closes its books."""

    def __init__(
        self,
        stage: int,
        plan: StagePlan,
        stages: int,
        producer: Producer,
        pool: Pool,
        recorder: Recorder,
        clock: Clock,
        halt: Halt,
    ) -> None:
        self._stage = stage
        self._plan = plan
        self._stages = stages
        self._producer = producer
        self._pool = pool
        self._recorder = recorder
        self._clock = clock
        self._halt = halt

    async def run(self, origin_ns: int, schedule: Schedule | None) -> None:
        """Run from a little before `origin_ns` until nothing of the stage is left anywhere."""
        if await self._halted_before(origin_ns - self._producer.lookahead_ns - LEAD_NS):
            return
        await self._announce(origin_ns, schedule)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_when_insisted)
            if self._plan.abort_when is not None:
                tasks.start_soon(self._abort_when_failing)
            ended = await self._producer.produce(self._stage, self._plan, origin_ns, schedule)
            drain_until_ns = self._drain_until(ended.stop_ns, ended.ended_by)
            await self._pool.stop(Stop(self._stage, ended.stop_ns, drain_until_ns))
            tasks.cancel_scope.cancel()
        # What a worker sent before it learnt of the stop was intended after all.
        intended = (
            self._pool.started[self._stage]
            if ended.intended is None
            else ended.intended + self._pool.overtaken[self._stage]
        )
        self._recorder.stage_ended(StageEnd(self._stage, ended.stop_ns, intended, ended.ended_by))

    async def _halted_before(self, instant_ns: int) -> bool:
        with anyio.move_on_after(max(0, instant_ns - self._clock.now_ns()) / NS_PER_SECOND):
            await self._halt.asked()
        return self._halt.reason is not None

    async def _announce(self, origin_ns: int, schedule: Schedule | None) -> None:
        plan, grid = self._plan, self._plan.grid(origin_ns)
        closed_end_ns = None
        if plan.concurrency is not None and plan.load.duration is not None:
            closed_end_ns = origin_ns + plan.load.duration
        shares = None if plan.concurrency is None else slot_shares(plan.concurrency, self._pool.size)
        self._recorder.stage_started(
            StageMeta(
                stage=self._stage,
                name=plan.name,
                kind=plan.kind,
                grid=grid,
                offered_rate=plan.offered_rate,
                concurrency=plan.concurrency,
                duration_ns=None if plan.load.duration is None else int(plan.load.duration),
                requests=plan.load.requests if schedule is None else schedule.count,
                warmup_auto=plan.load.warmup == "auto",
                drain_ns=int(plan.load.drain),
                judged=plan.kind != "offline",
                stages=self._stages,
            )
        )

        def start(worker: int, now_ns: int) -> StageStart:
            return StageStart(
                stage=self._stage,
                grid=grid,
                drop=plan.overflow == "drop",
                slots=None if shares is None else shares[worker],
                slots_from_ns=max(origin_ns, now_ns),
                stop_ns=closed_end_ns,
            )

        await self._pool.begin(self._stage, start)

    def _drain_until(self, stop_ns: int, ended_by: str) -> int | None:
        if self._plan.kind == "offline" and ended_by != "interrupted":
            return None
        return max(stop_ns, self._clock.now_ns() if ended_by == "interrupted" else stop_ns) + self._plan.load.drain

    async def _cancel_when_insisted(self) -> None:
        await self._halt.insisted()
        await self._pool.cancel(self._stage)

    async def _abort_when_failing(self) -> None:
        rule = self._plan.abort_when
        assert rule is not None
        while True:
            await self._clock.sleep_until(self._clock.now_ns() + _ABORT_CHECK_NS)
            ended, failed = self._recorder.error_rate(self._stage)
            if ended >= rule.after and failed >= rule.error_rate * ended:
                self._halt.ask("abort_when", f"{failed} of {ended} requests failed")
                return


def environment(info: TargetInfo) -> dict[str, Any]:
    """What a run was made with and on, for the report."""
    known = {name: getattr(info, name) for name in info.__struct_fields__ if name != "warnings"}
    return {
        "loadgen": loadgen.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": usable_cpus(),
        "target": {name: value for name, value in known.items() if value not in (None, ())},
    }


def _setups(profile: Profile, checked: Checked, plans: tuple[StagePlan, ...], nonce: int) -> list[Setup]:
    """One Setup a worker: the slots partitioned, and room for what it is given ahead of its time."""
    processes = processes_for(profile, plans)
    rate = max((plan.offered_rate or 0.0 for plan in plans), default=0.0)
    # Jobs at a worker before they are due, and ended ones whose credit is still on its way: two lookaheads' worth.
    room = 64 + round(2 * rate * profile.workers.lookahead / NS_PER_SECOND / processes)
    body = encode(checked.profile)
    return [
        Setup(body, checked.info, checked.tokenization, nonce, slots, room)
        for slots in slot_shares(profile.workers.max_inflight, processes)
    ]


def processes_for(profile: Profile, plans: tuple[StagePlan, ...]) -> int:
    """The number of worker processes of a run."""
    slots = min(profile.workers.max_inflight, min((p.concurrency for p in plans if p.concurrency), default=1 << 30))
    if profile.workers.processes != "auto":
        return min(profile.workers.processes, slots)
    if isinstance(profile.target, EngineTarget):
        return 1  # "auto" must not load a model twice unasked
    rate = max((plan.offered_rate or 0.0 for plan in plans), default=0.0)
    output = mean_output(profile.workload)
    seconds = 0.5 + _SECONDS_PER_OUTPUT_TOKEN * (256 if output is None else output)
    streams = max(rate * seconds, max((plan.concurrency or 0 for plan in plans), default=0))
    return choose_processes(min(streams, profile.workers.max_inflight), rate, slots, usable_cpus())


def _slot_faults(profile: Profile) -> list[str]:
    most = max((plan.concurrency or 0 for plan in plan_stages(profile.load)), default=0)
    if most <= profile.workers.max_inflight:
        return []
    return [f"workers.max_inflight = {profile.workers.max_inflight}: must be at least load.concurrency = {most}"]


def _with_nonce(profile: Profile, nonce: int) -> Profile:
    return replace(profile, workload=replace(profile.workload, nonce=nonce))


def _claim(directory: Path) -> None:
    """Make the run's directory. A directory that holds another run is refused, so that none is lost."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if (directory / "profile.toml").exists():
            raise ProfileError(str(directory), ["output.dir: holds a run already; choose another with --out"])
    except OSError as error:
        raise ProfileError(str(directory), [f"output.dir: cannot be written: {error.strerror}"]) from None
