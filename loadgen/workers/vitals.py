"""What the processes of the generator cost: CPU, memory and the pauses of Python's garbage collector."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from loadgen.clock import Clock
from loadgen.measure.journal import WorkerStats
from loadgen.units import NS_PER_SECOND
from loadgen.workers.dispatch import Dispatcher


class BusiestSecond:
    """The share of a core that this process used in its busiest second: it may be idle otherwise, and late in that."""

    def __init__(self, cpu_ns: Callable[[], int] = time.process_time_ns) -> None:
        self.share: float | None = None
        """None before the first second is over."""
        self._cpu_ns = cpu_ns

    async def watch(self, clock: Clock) -> None:
        """Measure until cancelled."""
        now_ns, cpu_ns = clock.now_ns(), self._cpu_ns()
        while True:
            await clock.sleep_until(now_ns + NS_PER_SECOND)
            before_ns, before_cpu_ns = now_ns, cpu_ns
            now_ns, cpu_ns = clock.now_ns(), self._cpu_ns()
            self.share = max(self.share or 0.0, (cpu_ns - before_cpu_ns) / (now_ns - before_ns))


class Vitals:
    """Measures this process, a worker, from `began_ns` on."""

    def __init__(self, worker: int, began_ns: int) -> None:
        self._worker = worker
        self._process = psutil.Process()
        self._began_ns = began_ns
        self._began_cpu_ns = time.process_time_ns()
        self._gc_began_ns = 0
        self._gc_ns = 0
        self._gc_max_ns = 0

    @contextmanager
    def watching_gc(self) -> Iterator[None]:
        """Time the collector's pauses; what exists already is set aside, so that collections stay short."""
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self._on_gc)
        try:
            yield
        finally:
            gc.callbacks.remove(self._on_gc)
            gc.unfreeze()

    def read(self, now_ns: int, dispatcher: Dispatcher) -> WorkerStats:
        """Totals since the start, and the levels of this moment."""
        return WorkerStats(
            worker=self._worker,
            pid=self._process.pid,
            cpu_ns=time.process_time_ns() - self._began_cpu_ns,
            wall_ns=now_ns - self._began_ns,
            rss_bytes=self._process.memory_info().rss,
            gc_ns=self._gc_ns,
            gc_max_ns=self._gc_max_ns,
            in_flight=dispatcher.in_flight,
            queued=dispatcher.queued,
        )

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        now_ns = time.monotonic_ns()
        if phase == "start":
            self._gc_began_ns = now_ns
            return
        pause_ns = now_ns - self._gc_began_ns
        self._gc_ns += pause_ns
        self._gc_max_ns = max(self._gc_max_ns, pause_ns)
