"""The worker's side of measurement: outcomes go into flat buffers, and numpy folds them a few times a second.

Nothing here decides which requests count: deltas are keyed by the interval of the intended start, so that the window
can be chosen afterwards (docs/metrics.md).
"""

from array import array
from collections.abc import Generator

import numpy as np

from loadgen.measure.batch import ABSENT, Batch
from loadgen.measure.delta import GOOD, MESSAGE_CHARACTERS, MESSAGE_KINDS, StageDelta
from loadgen.measure.goodput import good, ratios
from loadgen.measure.level import Level
from loadgen.measure.outcome import FAILED, Grid, Outcome
from loadgen.measure.records import encode_lines
from loadgen.profile.slo import Slo, request_limits
from loadgen.statistics.sparse import Samples, SparseHistograms, sparse_histograms
from loadgen.units import NS_PER_SECOND


class StageMeter:
    """What one worker measures of one stage.

    `entered`, `left`, `record` and `lag` only append to buffers; `flush` turns them into a delta and empties them.
    The buffers hold what ended since the last flush and nothing older. Not for use from several threads.

    slo: where it sets limits on requests, those that meet them are counted as goodput.
    keep_records: put a JSON line for each request into the deltas; outcomes are then held until the flush.
    """

    def __init__(self, stage: int, grid: Grid, slo: Slo | None, *, keep_records: bool) -> None:
        self.stage = stage
        self.grid = grid
        self._limits = [] if slo is None else request_limits(slo)
        self._tells_ratios = slo is not None and (slo.attainment or slo.goodput) is not None
        self._level = Level(grid)
        self.entered = self._level.entered
        """Call at the send of each request, with its instant."""
        self.left = self._level.left
        """Call at the end of each request that entered, whatever the account, with its instant."""
        self._keep_records = keep_records
        self._codes: dict[str, int] = {}
        self._labels: dict[str, int] = {}
        self._explained: set[str] = set()
        """The kinds of failure whose words were noted: the first of each are told, once."""
        self._reset()

    def _reset(self) -> None:
        self._rows = array("q")
        self._chunks_ns = array("q")
        self._chunk_tokens = array("q")
        self._lags = array("q")
        self._outcomes: list[Outcome] = []
        self._messages: dict[str, str] = {}

    @property
    def in_flight(self) -> int:
        """How many requests have entered and not left."""
        return self._level.now

    def record(self, outcome: Outcome) -> None:
        """Note one request's end. Where the target saw the end, its instant counts; else that of the account."""
        exchange = outcome.exchange
        chunks, known_chunks = 0, ABSENT
        if exchange.streamed:
            chunks = len(exchange.chunks_ns)
            self._chunks_ns.extend(exchange.chunks_ns)
            tokens = exchange.chunk_tokens
            if tokens is not None and len(tokens) == chunks:
                self._chunk_tokens.extend(tokens)
                known_chunks = chunks
        code = self._codes.get(outcome.account)
        if code is None:
            code = self._codes[outcome.account] = len(self._codes)
        if exchange.message:
            self._explain(outcome.account, exchange.message)
        label = ABSENT if exchange.label is None else self._labels.setdefault(exchange.label, len(self._labels))
        end_ns = exchange.end_ns
        # In the order of `batch.ROW`; spelt out, since this runs once a request.
        self._rows.extend(
            (
                outcome.index,
                code,
                outcome.intended_ns,
                ABSENT if outcome.admitted_ns is None else outcome.admitted_ns,
                ABSENT if outcome.sent_ns is None else outcome.sent_ns,
                outcome.end_ns if end_ns is None else end_ns,
                ABSENT if outcome.prompt_tokens_asked is None else outcome.prompt_tokens_asked,
                ABSENT if outcome.output_tokens_asked is None else outcome.output_tokens_asked,
                ABSENT if exchange.connect_ns is None else exchange.connect_ns,
                ABSENT if exchange.first_content_ns is None else exchange.first_content_ns,
                ABSENT if exchange.prompt_tokens is None else exchange.prompt_tokens,
                ABSENT if exchange.output_tokens is None else exchange.output_tokens,
                exchange.streamed,
                chunks,
                known_chunks,
                exchange.events,
                exchange.reads,
                ABSENT if exchange.items is None else exchange.items,
                ABSENT if exchange.dimensions is None else exchange.dimensions,
                label,
                exchange.retries,
                ABSENT if outcome.expected is None or label == ABSENT else exchange.label == outcome.expected,
                outcome.again and outcome.sent_ns is not None,
            )
        )
        if self._keep_records:
            self._outcomes.append(outcome)

    def _explain(self, account: str, message: str) -> None:
        """Keep the words of a failure whose kind has none yet."""
        if not account.startswith(FAILED):
            return
        kind = account.removeprefix(FAILED)
        if kind in self._explained or len(self._explained) >= MESSAGE_KINDS:
            return
        self._explained.add(kind)
        # A file's name in an error may hold what is no text; a delta that cannot be encoded would end the worker.
        self._messages[kind] = message[:MESSAGE_CHARACTERS].encode(errors="replace").decode()

    def lag(self, instant_ns: int, lag_ns: int) -> None:
        """Note by how much the event loop was late at an instant."""
        self._lags.append(instant_ns)
        self._lags.append(lag_ns)

    def flush(self, now_ns: int) -> StageDelta | None:
        """What happened since the last flush, up to `now_ns`; None where nothing did and nothing is in flight."""
        slices = self.flush_in_slices(now_ns)
        while True:
            try:
                next(slices)
            except StopIteration as done:
                delta: StageDelta | None = done.value
                return delta

    def flush_in_slices(self, now_ns: int) -> Generator[None, None, StageDelta | None]:
        """`flush` as work of a fraction of a millisecond at a time: at each yield the event loop may do other things.

        What is noted after the first slice belongs to the next flush.
        """
        rows, chunks_ns, chunk_tokens = self._rows, self._chunks_ns, self._chunk_tokens
        lags, outcomes, accounts, labels = self._lags, self._outcomes, list(self._codes), list(self._labels)
        messages = self._messages
        self._reset()
        series = self._level.fold(now_ns)
        if not (rows or lags or series):
            return None
        yield
        batch = Batch(self.grid, accounts, rows, chunks_ns, chunk_tokens)
        samples = [self._lag_samples(lags)]
        from_limits: list[SparseHistograms] = []
        if batch.size:
            yield
            samples += batch.samples()
            yield
            series += batch.series()
            if self._limits:
                series.append(batch.by_end(GOOD, good(self._limits, batch)))
            if self._tells_ratios:
                yield
                from_limits = sparse_histograms([ratios(self._limits, batch)])
        yield
        histograms = sparse_histograms(samples)
        yield
        return StageDelta(
            stage=self.stage,
            ended=batch["index"].tolist(),
            accounts=batch.counts(),
            sent=batch.sends(),
            excused=batch.excused(),
            histograms=histograms,
            series=[column for column in series if column.bins],
            tokens=batch.token_totals(),
            records=encode_lines(outcomes, self.grid) if outcomes else b"",
            messages=messages,
            labels=batch.labels(labels),
            retries=int(batch["retries"].sum()),
            ratios=from_limits,
            judged=batch.judged(),
            rows_again=int(batch["again"].sum()),
        )

    def _lag_samples(self, lags: "array[int]") -> Samples:
        instants, values = np.frombuffer(lags, np.int64).reshape(-1, 2).T
        since_window = instants - self.grid.window_ns
        return Samples("loop_lag", values, since_window // self.grid.interval_ns, since_window // NS_PER_SECOND)


__all__ = ["StageDelta", "StageMeter"]
