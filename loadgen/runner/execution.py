"""One run carried out: its stages from the first to the last, on whatever targets and workers they need."""

import platform
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio
from msgspec.structs import replace

import loadgen
from loadgen.clock import Clock
from loadgen.errors import ProfileError, innermost
from loadgen.judge.stages import StagesSoFar
from loadgen.load.halt import Halt
from loadgen.load.producer import Producer
from loadgen.load.stages import StagePlan
from loadgen.measure.journal import RunEnd, RunHeader, RunResumed
from loadgen.measure.recorder import Recorder
from loadgen.measure.run_journal import read_overview
from loadgen.measure.running import Live
from loadgen.profile import EngineTarget, Profile, Saturate
from loadgen.profile.decoding import encode
from loadgen.profile.file import write_profile
from loadgen.profile.grid import with_settings
from loadgen.runner.resume import RunLock, keep, what_is_complete
from loadgen.runner.stage import LEAD_NS, StageContext, StageRunner
from loadgen.search.program import planned, program_of
from loadgen.targets.base import TargetInfo
from loadgen.targets.kinds import Checked, patience_with
from loadgen.units import NS_PER_SECOND
from loadgen.workers.launch import Launcher
from loadgen.workers.messages import Setup
from loadgen.workers.pool import Pool
from loadgen.workers.sizing import choose_processes, slot_shares, usable_cpus
from loadgen.workload.lengths import mean_output

_SECONDS_PER_OUTPUT_TOKEN: Final = 0.025
"""A guess, for choosing the number of workers: what users accept between tokens."""

_TRIED: Final = ("workload", "workload.kind", "workload.tokenizer")
"""What the check of a target depends on besides the target: what the trial asks for, and how prompts are counted."""

Watch = Callable[[Callable[[], Live | None]], Coroutine[Any, Any, None]]
"""Shows what a run is doing, from the start of its workers to their end, until it is cancelled. It is given what to
read: None until the first stage begins."""

OpenTarget = Callable[[Profile, int], AbstractAsyncContextManager[tuple[Checked, Launcher]]]
"""Checks the target of a profile and makes ready what starts so many workers."""


class Execution:
    """The stages of one run, from the first to the last, whatever targets and workers they need.

    Stages that differ in load, SLO and the lengths and texts of the workload share the target and its workers. Where a
    grid changes a key of the target or the workers, or the kind of workload, these are opened anew.
    """

    def __init__(
        self,
        profile: Profile,
        open_target: OpenTarget,
        clock: Clock,
        directory: Path,
        *,
        halt: Halt,
        nonce: int,
        resume: bool = False,
    ) -> None:
        self._profile = profile
        self._plain = encode(replace(profile, sweep=()))
        self._open_target = open_target
        self._clock = clock
        self._directory = directory
        self._halt = halt
        self._nonce = nonce
        self._resume = resume
        self._program = program_of(profile)
        self._plans = planned(profile)
        self._so_far = StagesSoFar(directory)
        self._recorder: Recorder | None = None
        self._lock: RunLock | None = None
        self._watching = anyio.CancelScope()
        self._opening: anyio.CancelScope | None = None
        self._warnings: list[str] = []
        self._exhausted_ns = 0
        self._began_ns = clock.now_ns()
        self._load_began_ns: int | None = None
        self._began_cpu_ns = time.process_time_ns()

    async def run(self, watch: Watch | None = None) -> None:
        """Run all stages that are left, with the journal in the directory.

        Raises what opening a target raises, RunFailure, and ProfileError: the directory is taken, or holds no run that
        can be gone on with. Until the first target is open, nothing there is changed.
        """
        failure: str | None = None
        try:
            if self._resume and self._nothing_is_left():
                return
            group = self._next()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._give_up_opening)
                while group:
                    with anyio.CancelScope() as opening:
                        self._opening = opening
                        group = await self._leg(group, tasks, watch)
                    group = () if opening.cancelled_caught else group
                tasks.cancel_scope.cancel()
        except BaseException as error:
            failure = str(innermost(error)) or type(innermost(error)).__name__
            raise
        finally:
            self._end(failure)

    async def _leg(
        self, group: tuple[StagePlan, ...], tasks: anyio.abc.TaskGroup, watch: Watch | None
    ) -> tuple[StagePlan, ...]:
        """Run this group of stages and all later ones on the same target and workers; returns the next group."""
        settings = _of_target(group[0])
        profile = with_settings(self._plain, settings)
        processes = processes_for(profile, self._plans)
        async with self._open_target(profile, processes) as (checked, launcher):
            recorder = self._recording(checked, tasks, watch)
            pool = self._pool(profile, processes, checked, launcher, recorder)
            async with pool.running():
                self._halt.begun, self._opening = True, None
                if self._load_began_ns is None:
                    self._load_began_ns = self._clock.now_ns()
                producer = Producer(pool, recorder, self._clock, lookahead_ns=profile.workers.lookahead)
                stages = len(self._plans or ())
                context = StageContext(producer, pool, recorder, self._clock, self._so_far, stages, self._deadline_ns())
                while group and _of_target(group[0]) == settings:
                    await self._run_group(group, context)
                    group = self._next()
                self._exhausted_ns += producer.credits_exhausted_ns
                if not group:
                    self._watching.cancel()  # nothing is measured any more, but an engine may take its time to end
        return group

    async def _give_up_opening(self) -> None:
        """Between two targets of a grid there is nothing to drain: what is being opened is given up."""
        await self._halt.asked()
        if self._halt.begun and self._opening is not None:
            self._opening.cancel()

    def _nothing_is_left(self) -> bool:
        """Find what of a run that is gone on with is whole. Where all of it is, see that its end is, too."""
        self._lock = RunLock(self._directory)
        kept = what_is_complete(self._profile, self._directory)
        self._so_far.ended = kept.stages
        if not kept.ended and not self._next():
            self._recorder = self._go_on(read_overview(self._directory).header)
        return kept.ended or self._recorder is not None

    def _go_on(self, header: RunHeader) -> Recorder:
        keep(self._directory, len(self._so_far))
        stages = len(self._so_far)
        self._warnings.append(f"The run was gone on with: its first {stages} stages are of an earlier start.")
        return self._recorder_of(header, RunResumed(_now(), time.time(), self._clock.now_ns()))

    def _next(self) -> tuple[StagePlan, ...]:
        """The next stages; none where the run is over or is to end."""
        deadline_ns = self._deadline_ns()
        over = self._halt.reason is not None or (deadline_ns is not None and self._clock.now_ns() >= deadline_ns)
        return () if over else self._program(self._so_far)

    def _deadline_ns(self) -> int | None:
        load = self._profile.load
        if not isinstance(load, Saturate) or self._load_began_ns is None:
            return None
        return self._load_began_ns + load.max_time  # an engine may take minutes to start

    def _recording(self, checked: Checked, tasks: anyio.abc.TaskGroup, watch: Watch | None) -> Recorder:
        """The recorder of the run, from its first target on; before that nothing is written."""
        if self._recorder is not None:
            self._warnings += checked.info.warnings
            return self._recorder
        header = RunHeader(
            name=self._profile.name,
            started_at=_now(),
            base_wall_seconds=time.time(),
            base_monotonic_ns=self._clock.now_ns(),
            profile=encode(self._profile),
            environment=environment(checked.info),
            warnings=list(checked.info.warnings),
        )
        if self._resume:
            self._warnings += [*checked.info.warnings, *_changed(read_overview(self._directory).header, header)]
            self._recorder = self._go_on(header)
        else:
            _claim(self._directory)
            self._lock = RunLock(self._directory)
            write_profile(self._profile, self._directory / "profile.toml")
            self._recorder = self._recorder_of(header, None)
        if watch is not None:
            tasks.start_soon(self._watch, watch, self._recorder)
        return self._recorder

    def _recorder_of(self, header: RunHeader, resumed: RunResumed | None) -> Recorder:
        output = self._profile.output
        return Recorder(
            self._directory,
            header,
            hlog="hlog" in output.formats,
            records=output.lines,
            clock=self._clock,
            resumed=resumed,
        )

    async def _watch(self, watch: Watch, recorder: Recorder) -> None:
        with self._watching:
            await watch(recorder.live)

    def _pool(self, profile: Profile, processes: int, checked: Checked, launcher: Launcher, recorder: Recorder) -> Pool:
        # Jobs at a worker before they are due, and ended ones whose credit is still on its way: two lookaheads' worth.
        rate = profile.workers.max_inflight if self._plans is None else _most_offered(self._plans)
        room = 64 + round(2 * rate * profile.workers.lookahead / NS_PER_SECOND / processes)
        body = encode(checked.profile)
        setups = [
            Setup(body, checked.info, checked.tokenization, self._nonce, slots, room)
            for slots in slot_shares(profile.workers.max_inflight, processes)
        ]
        return Pool(
            launcher,
            setups,
            recorder,
            self._clock,
            max_restarts=profile.workers.max_restarts,
            fail=lambda why: self._halt.ask("failure", why),
            patience=patience_with(profile.target),
        )

    async def _run_group(self, group: tuple[StagePlan, ...], context: StageContext) -> None:
        """Run stages that follow each other without a pause, and see the last of them drained."""
        origin_ns = self._clock.now_ns() + LEAD_NS
        async with anyio.create_task_group() as tasks:
            for number, plan in enumerate(group, start=len(self._so_far)):
                profile = with_settings(self._plain, plan.settings) if plan.settings else self._profile
                schedule = context.producer.schedule(number, plan, origin_ns, profile.workload.seed)
                one = StageRunner(
                    number,
                    plan,
                    context,
                    self._halt,
                    profile=encode(profile) if plan.settings else None,
                    slo=profile.slo,
                )
                tasks.start_soon(one.run, origin_ns, schedule)
                if schedule is not None:
                    origin_ns = schedule.end_ns
        self._so_far.ended += len(group)

    def _end(self, failure: str | None) -> None:
        try:
            if self._recorder is not None:
                self._record_end(self._recorder, failure)
        finally:
            if self._lock is not None:
                self._lock.release()

    def _record_end(self, recorder: Recorder, failure: str | None) -> None:
        halt = self._halt
        wall_ns = max(1, self._clock.now_ns() - self._began_ns)
        if halt.reason == "abort_when":
            self._warnings.append(f"load.abort_when ended the run: {halt.message}.")
        recorder.run_ended(
            RunEnd(
                interrupted=halt.reason == "interrupted",
                parent_cpu=(time.process_time_ns() - self._began_cpu_ns) / wall_ns if halt.begun else None,
                credits_exhausted_ns=self._exhausted_ns,
                warnings=self._warnings,
                failure=failure or (halt.message if halt.reason == "failure" else None),
            )
        )
        recorder.close()


def _now() -> str:
    """Wall time as a label."""
    return datetime.now(UTC).astimezone().isoformat(timespec="seconds")


def _of_target(plan: StagePlan) -> dict[str, Any]:
    """The settings of a stage that need another target or other workers, or the target tried in another way."""
    return {
        key: value
        for key, value in plan.settings.items()
        if key.split(".")[0] in ("target", "workers") or key in _TRIED
    }


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


def _changed(began: RunHeader, now: RunHeader) -> list[str]:
    """What a reader should know where a run is gone on with and its target is not what it was."""
    before, after = (header.environment.get("target", {}) for header in (began, now))
    changes = [
        f"{key} {before.get(key)} before, {after.get(key)} after"
        for key in ("model", "version", "max_model_len")
        if before.get(key) != after.get(key)
    ]
    swept = any(axis["key"].split(".")[0] == "target" for axis in now.profile["sweep"])
    return [] if swept or not changes else [f"The run went on with another target: {'; '.join(changes)}."]


def processes_for(profile: Profile, plans: tuple[StagePlan, ...] | None) -> int:
    """The number of worker processes of a run: never more than the most slots that one of its stages has.

    `plans` is None for a search, which may need all that there can be.
    """
    known = plans or ()
    slots = min(profile.workers.max_inflight, max((p.concurrency for p in known if p.concurrency), default=1 << 30))
    if profile.workers.processes != "auto":
        return min(profile.workers.processes, slots)
    if isinstance(profile.target, EngineTarget):
        return 1  # "auto" must not load a model twice unasked
    if plans is None:
        return choose_processes(profile.workers.max_inflight, 0.0, slots, usable_cpus())
    rate = _most_offered(plans)
    output = mean_output(profile.workload)
    seconds = 0.5 + _SECONDS_PER_OUTPUT_TOKEN * (256 if output is None else output)
    streams = max(rate * seconds, max((plan.concurrency or 0 for plan in plans), default=0))
    return choose_processes(min(streams, profile.workers.max_inflight), rate, slots, usable_cpus())


def _most_offered(plans: tuple[StagePlan, ...]) -> float:
    return max((plan.offered_rate or 0.0 for plan in plans), default=0.0)


def _claim(directory: Path) -> None:
    """Make the run's directory. A directory that holds another run is refused, so that none is lost."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if (directory / "profile.toml").exists():
            raise ProfileError(str(directory), ["output.dir: holds a run already; choose another with --out"])
    except OSError as error:
        raise ProfileError(str(directory), [f"output.dir: cannot be written: {error.strerror}"]) from None
