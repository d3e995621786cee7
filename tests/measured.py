"""Builders of what a worker and the parent say, so that tests state only what they are about. Times are in seconds."""

from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from loadgen.measure.aggregate import StageMeter
from loadgen.measure.delta import StageDelta
from loadgen.measure.journal import RunEnd, RunHeader, StageEnd, StageMeta
from loadgen.measure.outcome import COMPLETED, Exchange, Grid, Outcome
from loadgen.measure.recorder import Recorder
from loadgen.profile.slo import Slo
from loadgen.statistics.histogram import Delta
from loadgen.statistics.sparse import Table
from loadgen.units import NS_PER_SECOND

ORIGIN_NS = 1000 * NS_PER_SECOND


def ns(seconds: float) -> int:
    return round(seconds * NS_PER_SECOND)


class HandClock:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.at_ns = ORIGIN_NS

    def now_ns(self) -> int:
        return self.at_ns


class Build:
    """Builds outcomes, deltas and whole runs on one stage of one-second intervals from `ORIGIN_NS`."""

    origin_ns = ORIGIN_NS

    def grid(self, warmup: float = 0.0, interval: float = 1.0) -> Grid:
        return Grid(ORIGIN_NS, ORIGIN_NS + ns(warmup), ns(interval))

    def outcome(
        self,
        at: float = 0.0,
        *,
        index: int = 0,
        account: str = COMPLETED,
        queued: float | None = 0.0,
        late: float | None = 0.0,
        tokens: Sequence[float] = (0.1,),
        took: float | None = None,
        streamed: bool = True,
        asked: int | None = None,
        output: int | None = None,
        chunk_tokens: Sequence[int] | None = None,
        prompt: int | None = None,
        prompt_asked: int | None = None,
        message: str = "",
        **seen: Any,
    ) -> Outcome:
        """A request intended `at` seconds after the origin.

        queued, late: None for one that never had a slot, or never was sent.
        tokens: when its token-bearing chunks came, from its intended start.
        took: from its intended start to its end; by default to its last chunk.
        output: the server's count; None where it told none.
        seen: further fields of the exchange.
        """
        intended = ORIGIN_NS + ns(at)
        admitted = None if queued is None else intended + ns(queued)
        sent = None if admitted is None or late is None else admitted + ns(late)
        chunks = [intended + ns(token) for token in tokens] if sent is not None and streamed else []
        end = intended + ns(took if took is not None else tokens[-1] if tokens else 0.0)
        exchange = Exchange(
            streamed=streamed,
            end_ns=end if account == COMPLETED else None,
            chunks_ns=array("q", chunks),
            chunk_tokens=None if chunk_tokens is None else array("q", chunk_tokens),
            first_content_ns=chunks[0] if chunks else None,
            output_tokens=output,
            prompt_tokens=prompt,
            message=message,
            **seen,
        )
        return Outcome(0, index, account, intended, admitted, sent, end, prompt_asked, asked, exchange)

    def delta(self, *outcomes: Outcome, grid: Grid | None = None, slo: Slo | None = None) -> StageDelta:
        """What a worker says of these requests, with the times at which they were in flight."""
        meter = StageMeter(0, grid or self.grid(), slo, keep_records=False)
        last = ORIGIN_NS
        for outcome in outcomes:
            last = max(last, self.note(meter, outcome))
        delta = meter.flush(last)
        assert delta is not None
        return delta

    def note(self, meter: StageMeter, outcome: Outcome) -> int:
        """Tell a meter of a request from its send to its end, which is returned."""
        if outcome.sent_ns is not None:
            meter.entered(outcome.sent_ns)
            meter.left(outcome.end_ns)
        meter.record(outcome)
        return outcome.end_ns

    def header(self, **profile: object) -> RunHeader:
        return RunHeader("run", "2023-11-14T22:13:20+00:00", 1_700_000_000.0, ORIGIN_NS, profile, {"loadgen": "0"})

    def meta(self, grid: Grid | None = None, **fields: object) -> StageMeta:
        told = {"stage": 0, "name": "poisson 20/s", "kind": "poisson", "grid": grid or self.grid(), **fields}
        return StageMeta(**told)  # type: ignore[arg-type]

    def recorder(
        self, directory: Path, header: RunHeader | None = None, **switches: bool
    ) -> tuple[Recorder, HandClock]:
        clock = HandClock()
        switches = {"hlog": False, "records": False, **switches}
        return Recorder(directory, header or self.header(), clock=clock, **switches), clock  # type: ignore[arg-type]

    def run(
        self,
        directory: Path,
        deltas: Sequence[StageDelta],
        *,
        stop: float = 10.0,
        intended: int | None = None,
        header: RunHeader | None = None,
        meta: StageMeta | None = None,
        more: Callable[[Recorder], None] = lambda recorder: None,
        ended: bool = True,
    ) -> Path:
        """Record a run of one stage whose arrivals stop after `stop` seconds; `more` is called before it ends."""
        recorder, _ = self.recorder(directory, header)
        recorder.stage_started(meta or self.meta())
        for delta in deltas:
            recorder.apply(delta, 0, ORIGIN_NS)
        more(recorder)
        if ended:
            count = recorder.books(0).ended if intended is None else intended
            recorder.stage_ended(StageEnd(0, ORIGIN_NS + ns(stop), count, "duration"))
            recorder.run_ended(RunEnd(False, 0.1, 0))
        recorder.close()
        return directory

    def sums(self, delta: StageDelta, metric: str) -> Delta | None:
        """All samples of a metric in a delta; None where it has none."""
        for piece in delta.histograms:
            if piece.metric == metric:
                table = Table.open([piece])
                return table.merged(table.intervals * 0)[0][1]
        return None

    def series(self, delta: StageDelta, name: str) -> dict[int, float]:
        """A series of a delta by bin."""
        return {
            number: amount
            for column in delta.series
            if column.name == name
            for number, amount in zip(column.numbers().tolist(), column.amounts().tolist(), strict=True)
        }


@pytest.fixture(scope="session")
def build() -> Build:
    return Build()
