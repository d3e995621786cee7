"""The same run in virtual time, with its workers as tasks and its target simulated: an hour of load in seconds.

What answers is the model of vLLM in `sim`, one engine or several replicas behind a router, whatever the profile loads.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from loadgen.clock import Clock
from loadgen.errors import ProfileError
from loadgen.load.halt import Halt
from loadgen.profile import Profile, SimTarget
from loadgen.report.files import write_files
from loadgen.runner.execution import Execution
from loadgen.runner.requirements import check_environment, slot_faults
from loadgen.runner.results import summary_of
from loadgen.sim.config import SimFaults
from loadgen.sim.engine.router import Router, Routing, open_replicas
from loadgen.summary.summary import Summary
from loadgen.targets.base import Simulation, Target, TargetInfo
from loadgen.targets.kinds import Checked, checked_target
from loadgen.targets.sim import SimSession
from loadgen.workers.launch import InlineLauncher, Launcher

_SERVERS_FAULTS: Final = ("error_rate", "abort_rate", "disconnect_rate", "silent_after", "reject_fields")
"""Those that a simulated server has and an engine has not."""


class Fleet(msgspec.Struct, frozen=True):
    """What a simulated deployment is made of: so many engines, and how a router chooses among them."""

    replicas: int = 1
    routing: Routing = "round-robin"


async def simulate(
    profile: Profile, clock: Clock, directory: Path, fleet: Fleet | None = None, *, halt: Halt | None = None
) -> Summary:
    """Run a profile in the time of `clock`, which should be virtual, and leave its files in `directory`.

    `virtual_time.run_virtually` gives such a clock, and time that passes by itself. The same profile and fleet give the
    same measurements. `halt` ends the run in order.

    Raises:
        ProfileError: the profile cannot be simulated (its kind of workload), or the directory is taken.
        RunFailure: a file of the run could not be written.
    """
    profile, warnings = simulable(profile)
    faults = check_environment(profile) + slot_faults(profile)
    if faults:
        raise ProfileError(profile.name, faults)
    opened = partial(_open, clock=clock, fleet=fleet or Fleet(), warnings=warnings)
    await Execution(profile, opened, clock, directory, halt=halt or Halt(), nonce=profile.workload.nonce or 0).run()
    summary = summary_of(directory)
    write_files(summary, directory, profile.output.formats)
    return summary


def simulable(profile: Profile) -> tuple[Profile, list[str]]:
    """The profile as it is simulated, and what a reader of the report should know of the difference.

    The target is the model in the worker. One worker is what "auto" means, as none can be too slow here. Without a
    nonce it is 0: no cache is warm from an earlier run.

    Raises:
        ProfileError: the model in a worker has not this kind of workload.
    """
    target, warnings = profile.target, []
    if isinstance(target, SimTarget):
        simulated = replace(target, transport="in-process")
        warnings = [
            f"target.faults.{name} is a simulated server's and does nothing in virtual time."
            for name in _SERVERS_FAULTS
            if getattr(target.faults, name) != getattr(SimFaults(), name)
        ]
    else:
        simulated = SimTarget(transport="in-process", stream=target.stream, timeout=target.timeout)
        kind = target.__struct_config__.tag
        warnings = [f"The profile's target, of kind {kind}, was not loaded: the simulated engine stood in for it."]
    workers, workload = profile.workers, profile.workload
    try:
        profile = replace(
            profile,
            target=simulated,
            workers=replace(workers, processes=1 if workers.processes == "auto" else workers.processes),
            workload=replace(workload, nonce=workload.nonce or 0),
        )
    except ValueError as error:
        raise ProfileError(profile.name, [str(error)]) from None
    return profile, warnings


@asynccontextmanager
async def _open(
    profile: Profile, _: int, *, clock: Clock, fleet: Fleet, warnings: list[str]
) -> AsyncIterator[tuple[Checked, Launcher]]:
    """A fleet, and workers as tasks that all load it."""
    profile, _warnings = simulable(profile)  # a grid may have changed its target
    target = profile.target
    assert isinstance(target, SimTarget)
    simulation = Simulation(fleet.replicas, fleet.routing if fleet.replicas > 1 else None)
    async with (
        checked_target(profile, clock) as checked,
        open_replicas(
            target.engine,
            target.faults,
            clock,
            replicas=fleet.replicas,
            routing=fleet.routing,
            seed=profile.workload.seed,
        ) as router,
    ):
        info = replace(checked.info, simulation=simulation, warnings=(*checked.info.warnings, *warnings))
        opener = partial(_open_session, router, target.stream)
        yield replace(checked, info=info), InlineLauncher(clock, opener, half_the_snapshots=True)


@asynccontextmanager
async def _open_session(
    router: Router, stream: bool, _profile: Profile, _info: TargetInfo, clock: Clock
) -> AsyncIterator[Target]:
    """A worker's session with engines that are not its own."""
    yield SimSession(router, clock, stream=stream)
