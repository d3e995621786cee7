"""What the parent and a worker say to each other: tagged arrays in msgpack. Instants are monotonic ns."""

from typing import Any

import msgspec

from loadgen.measure.delta import StageDelta
from loadgen.measure.journal import WorkerStats
from loadgen.measure.outcome import Grid
from loadgen.targets.base import Opening, TargetInfo
from loadgen.workload.request import Tokenization


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One message on the channel."""


# --- from the parent --------------------------------------------------------------------------------------------------


class Setup(_Message, frozen=True):
    """The first message to a worker: what it needs to build its target and to render any request of the run."""

    profile: dict[str, Any]
    """As `decoding.encode` made it; secrets are only named in it."""
    info: TargetInfo
    tokenization: Tokenization | None
    """None where it is the opened target that tells."""
    nonce: int
    slots: int
    """This worker's share of `max_inflight`."""
    room: int
    """How many jobs beyond its slots it may hold before they are due."""


class StageStart(_Message, frozen=True):
    """A stage begins. `slots` is this worker's share of a closed loop, None in an open one."""

    stage: int
    grid: Grid
    drop: bool
    """Whether a job that finds no free slot when it is due is dropped instead of waiting."""
    slots: int | None
    slots_from_ns: int
    """Closed loop: the instant at which the slots begin, later than the origin in a worker that was started again."""
    stop_ns: int | None
    """Closed loop of known length: the instant from which no slot starts another request."""
    profile: dict[str, Any] | None = None
    """The stage's own, as `decoding.encode` made it, where it is another than the run's: its workload and SLO hold."""


class Jobs(_Message, frozen=True):
    """Requests to start. `intended_ns` runs beside `indices`; it is empty in a closed loop: a free slot decides.

    Those due before `queued_until_ns` waited until then for the target of another worker, which died.
    """

    stage: int
    indices: list[int]
    intended_ns: list[int]
    queued_until_ns: int = 0


class Stop(_Message, frozen=True):
    """The arrivals of a stage end at `stop_ns`: later jobs go back, unsent ones are unfinished, the rest drains."""

    stage: int
    stop_ns: int
    drain_until_ns: int | None
    """When requests still in flight are ended as unfinished; None: they are followed to their end."""


class Cancel(_Message, frozen=True):
    """End every request of a stage that is in flight now, as cancelled."""

    stage: int


class Finish(_Message, frozen=True):
    """The run is over: close the target and end."""


# --- from a worker ----------------------------------------------------------------------------------------------------


class Hello(_Message, frozen=True):
    """The first message of a worker. `token` proves that this run started it."""

    token: str
    worker: int
    pid: int


class Ready(_Message, frozen=True):
    """The target is open; jobs may come. `credits` is how many."""

    credits: int
    opening: Opening | None = None


class Failed(_Message, frozen=True):
    """The target could not be opened; the worker ends. `usage`: it is the profile that is at fault."""

    reason: str
    usage: bool = False


class Gone(_Message, frozen=True):
    """The target is gone for good, and the worker ends. What was in flight has been told as failed; the other jobs of
    this worker were not sent, and go to others."""

    reason: str


class Grant(_Message, frozen=True):
    """`credits` more jobs may come."""

    credits: int


class Started(_Message, frozen=True):
    """Jobs of a closed loop that have started, and when. Sent as they start, so that a death can book them as lost."""

    stage: int
    indices: list[int]
    intended_ns: list[int]


class Snapshot(_Message, frozen=True):
    """What ended since the last snapshot and what was measured of it, in one message so that they cannot differ."""

    stats: WorkerStats
    deltas: list[StageDelta]


class Returned(_Message, frozen=True):
    """Jobs of a stopped stage that were never due: they were not intended after all."""

    stage: int
    indices: list[int]


class Stopped(_Message, frozen=True):
    """Nothing of this stage is left in the worker, and its last delta has been sent."""

    stage: int


ToWorker = Setup | StageStart | Jobs | Stop | Cancel | Finish
FromWorker = Hello | Ready | Failed | Gone | Grant | Started | Snapshot | Returned | Stopped
Message = ToWorker | FromWorker
