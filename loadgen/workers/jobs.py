"""What a dispatcher works on: jobs, the stages that they belong to, and what there is to tell the parent of them."""

from collections import deque
from typing import Any

import anyio

from loadgen.measure.aggregate import StageMeter
from loadgen.targets.base import Target
from loadgen.workload.request import Request
from loadgen.workload.sources import Workload


class Job:
    """One request on its way through a worker."""

    __slots__ = ("cut", "fault", "index", "intended_ns", "prepared", "queued_until_ns", "request", "run", "scope")

    def __init__(self, run: "StageRun", index: int, intended_ns: int, queued_until_ns: int = 0) -> None:
        self.run = run
        self.index = index
        self.intended_ns = intended_ns
        self.queued_until_ns = max(intended_ns, queued_until_ns)
        """When it could be started: its intended start, or later where it waited for a target."""
        self.request: Request | None = None
        self.prepared: Any = None
        self.fault: str | None = None
        self.scope: anyio.CancelScope | None = None
        self.cut: str | None = None
        """The account into which somebody ended this job early."""

    def __lt__(self, other: "Job") -> bool:
        return self.intended_ns < other.intended_ns


class StageRun:
    """One stage as one worker runs it."""

    def __init__(
        self,
        stage: int,
        workload: Workload,
        meter: StageMeter,
        *,
        drop: bool,
        closed: bool,
        texts: bool = False,
        target: Target | None = None,
    ) -> None:
        self.stage = stage
        self.workload = workload
        self.target = target
        """What its requests are sent with; None: with what the worker holds, as it is."""
        self.meter = meter
        self.drop = drop
        self.closed = closed
        self.texts = texts
        """Whether the texts of its answers are kept."""
        self.held = 0
        """Jobs that the worker has of this stage and that have not ended."""
        self.in_flight: dict[int, Job] = {}
        self.prefetched: deque[Job] = deque()
        """Closed loop: jobs that no slot has started yet."""
        self.free_slots: deque[int] = deque()
        """Closed loop: for each free slot the instant from which it is free."""
        self.stop_ns: int | None = None
        self.stopped = False
        self.drain_scope: anyio.CancelScope | None = None


class News:
    """What the worker has to tell the parent; whoever tells it takes it out. `wait` returns when there is something."""

    def __init__(self) -> None:
        self.credits = 0
        self.started: dict[int, tuple[list[int], list[int]]] = {}
        """By stage, indices and intended starts of the closed-loop jobs started."""
        self.over: list[StageRun] = []
        """Stages of which nothing is left; their last measurements are still in their meters."""
        self._something = anyio.Event()
        self._stage_over = anyio.Event()

    def tell(self) -> None:
        self._something.set()

    def tell_over(self, run: StageRun) -> None:
        self.over.append(run)
        self._stage_over.set()

    async def wait(self) -> None:
        await self._something.wait()
        self._something = anyio.Event()

    async def wait_over(self) -> None:
        await self._stage_over.wait()
        self._stage_over = anyio.Event()
