"""One flush of outcomes as numpy columns, and what follows from them: latencies, events by bin, sums and counts.

The definitions of docs/metrics.md, each in one place.
"""

from array import array
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadgen.measure.delta import (
    ARRIVALS,
    COMPLETIONS,
    FAILURES,
    ITEMS,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    TTFT_COUNT,
    TTFT_SUM,
    Column,
    TokenTotals,
    column_of,
)
from loadgen.measure.outcome import COMPLETED, DROPPED, FAILED, TIMEOUT, UNFINISHED, Grid
from loadgen.statistics.histogram import Ints
from loadgen.statistics.sparse import Samples
from loadgen.units import NS_PER_SECOND

Mask = NDArray[np.bool_]

ABSENT: Final = -1
"""Stands in the buffers, and only there, for what is not known."""

ROW: Final = (
    "index",
    "account",
    "intended",
    "admitted",
    "sent",
    "end",
    "prompt_asked",
    "output_asked",
    "connect",
    "first_content",
    "prompt",
    "counted_output",
    "streamed",
    "chunks",
    "known_chunks",
    "events",
    "reads",
    "items",
    "dimensions",
    "label",
    "retries",
    "right",
    "again",
)
"""The integers kept of each outcome, in order. `known_chunks`: how many chunks have token counts of their own; `label`
is the place of a label among those that the meter has seen; `right`: 1 where it is the expected one, else 0."""


class Batch:
    """The outcomes of one flush. Columns have one entry an outcome, `chunk_*` and `gap_*` one a chunk or gap."""

    def __init__(
        self, grid: Grid, accounts: list[str], rows: "array[int]", chunks_ns: "array[int]", chunk_tokens: "array[int]"
    ) -> None:
        self.grid = grid
        self.accounts = accounts
        columns = np.ascontiguousarray(np.frombuffer(rows, np.int64).reshape(-1, len(ROW)).T)
        self._columns: dict[str, Ints] = dict(zip(ROW, columns, strict=True))
        self.size = columns.shape[1]
        self.intended, self.sent, self.end = self["intended"], self["sent"], self["end"]
        self.interval = (self.intended - grid.window_ns) // grid.interval_ns
        self.second = (self.end - grid.window_ns) // NS_PER_SECOND
        self.completed = self.of(lambda account: account == COMPLETED)
        self.failed = self.of(lambda account: account.startswith(FAILED))
        self._place_chunks(np.frombuffer(chunks_ns, np.int64))
        self._count_output(np.frombuffer(chunk_tokens, np.int64))

    def __getitem__(self, name: str) -> Ints:
        return self._columns[name]

    def of(self, chosen: Callable[[str], bool]) -> Mask:
        """Which outcomes have an account that is chosen."""
        wanted = np.array([chosen(account) for account in self.accounts], np.bool_)
        mask: Mask = wanted[self["account"]]
        return mask

    def _place_chunks(self, chunks_ns: Ints) -> None:
        count = self["chunks"]
        self.chunk_ns = chunks_ns
        self.chunk_owner = np.repeat(np.arange(self.size), count)
        self.has_token = count > 0
        ends = np.cumsum(count)
        self.first_token, self.last_token = np.full((2, self.size), ABSENT, np.int64)
        self.first_token[self.has_token] = chunks_ns[(ends - count)[self.has_token]]
        self.last_token[self.has_token] = chunks_ns[ends[self.has_token] - 1]
        within = self.chunk_owner[1:] == self.chunk_owner[:-1]
        self.gap_owner = self.chunk_owner[1:][within]
        self.gaps = np.diff(chunks_ns)[within]

    def _count_output(self, chunk_tokens: Ints) -> None:
        """Output tokens: the server's count, else token ids, else chunks; ABSENT where a whole answer told none."""
        counted, count = self["counted_output"], self["chunks"]
        self.by_token_ids = self["known_chunks"] != ABSENT
        self.by_usage = ~self.by_token_ids & (counted != ABSENT)
        self.by_chunks = ~self.by_token_ids & ~self.by_usage & (self["streamed"] == 1)
        spread = self.completed & self.by_usage & self.has_token
        each = np.where(spread, counted / np.maximum(count, 1), 1.0)
        self.chunk_weight = each[self.chunk_owner]
        self.chunk_weight[self.by_token_ids[self.chunk_owner]] = chunk_tokens
        seen = np.bincount(self.chunk_owner, self.chunk_weight, self.size)
        self.output = np.where(counted != ABSENT, counted, np.where(self.by_token_ids, seen.astype(np.int64), ABSENT))
        self.output[self.by_chunks] = count[self.by_chunks]

    # --- latencies ----------------------------------------------------------------------------------------------------

    @cached_property
    def latencies(self) -> dict[str, tuple[Ints, Mask]]:
        """For each latency of one value a request: the values (ns), and which requests have one."""
        return {name: of(self) for name, of in LATENCIES.items()}

    @property
    def tokens(self) -> Mask:
        """Completed requests with a token-bearing chunk."""
        return self.completed & self.has_token

    @property
    def was_sent(self) -> Mask:
        both: Mask = (self.sent != ABSENT) & (self["admitted"] != ABSENT)
        return both

    def bounds(self) -> dict[str, tuple[Ints, Mask]]:
        """Ages of requests that had not ended, or that the client's timeout ended: lower bounds of two latencies."""
        age = self.end - self.intended
        open_ended = self.of(lambda account: account in (UNFINISHED, FAILED + TIMEOUT))
        return {
            "response_at_least": (age, open_ended),
            "ttft_at_least": (age, open_ended & ~self.has_token & (self["streamed"] == 1)),
        }

    def samples(self) -> Iterator[Samples]:
        """Everything that goes into histograms."""
        failures = {
            account: (self.end - self.intended, self["account"] == code)
            for code, account in enumerate(self.accounts)
            if account.startswith(FAILED)
        }
        for name, (values, there) in (self.latencies | self.bounds() | failures).items():
            yield Samples(name, values[there], self.interval[there], self.second[there])
        counts = self.completed[self.gap_owner]
        owner = self.gap_owner[counts]
        yield Samples("itl", self.gaps[counts], self.interval[owner], self.second[owner])

    # --- events by bin ------------------------------------------------------------------------------------------------

    def series(self) -> Iterator[Column]:
        """Events by the bin of their own instant, arrivals and TTFT by that of the intended start."""
        token = self.tokens
        stayed = self.of(lambda account: account != DROPPED)
        yield self._by_bin(ARRIVALS, self.intended[stayed])
        yield self._by_bin(COMPLETIONS, self.end[self.completed])
        yield self._by_bin(FAILURES, self.end[self.failed])
        yield self._by_bin(TTFT_COUNT, self.intended[token])
        yield self._by_bin(TTFT_SUM, self.intended[token], (self.first_token - self.intended)[token])
        yield self._output_tokens()
        yield self._prompt_tokens()
        several = self.completed & (self["items"] != ABSENT)
        yield self._by_bin(ITEMS, self.end[several], self["items"][several])

    def by_end(self, name: str, chosen: Mask) -> Column:
        """The chosen outcomes by the bin of their end."""
        return self._by_bin(name, self.end[chosen])

    def _by_bin(self, name: str, instants: Ints, weights: "NDArray[np.float64] | Ints | None" = None) -> Column:
        if not instants.size:
            return Column(name, b"", b"")
        bins = (instants - self.grid.window_ns) // self.grid.bin_ns
        first = int(bins.min())
        return column_of(name, first, np.bincount(bins - first, weights))

    def _output_tokens(self) -> Column:
        """Tokens as their chunks came; those of a whole answer at its end."""
        whole = self.completed & ~self.has_token & (self.output > 0)
        instants = np.concatenate((self.chunk_ns, self.end[whole]))
        return self._by_bin(OUTPUT_TOKENS, instants, np.concatenate((self.chunk_weight, self.output[whole])))

    def _prompt_tokens(self) -> Column:
        """Prompt tokens when the first output token shows that they are read; those of a whole answer at its end."""
        known = (self["prompt"] != ABSENT) & (self.has_token | self.completed)
        instants = np.where(self.has_token, self.first_token, self.end)
        return self._by_bin(PROMPT_TOKENS, instants[known], self["prompt"][known])

    # --- sums and counts ----------------------------------------------------------------------------------------------

    def counts(self) -> list[tuple[int, str, int]]:
        """Outcomes by interval and account."""
        return [(interval, self.accounts[code], n) for (interval, code), n in _tally(self.interval, self["account"])]

    def labels(self, names: list[str]) -> list[tuple[int, str, int]]:
        """Completed requests by interval and label, where their answers are labels."""
        labelled = self.completed & (self["label"] != ABSENT)
        pairs = _tally(self.interval[labelled], self["label"][labelled])
        return [(interval, names[code], n) for (interval, code), n in pairs]

    def judged(self) -> list[tuple[int, int, int]]:
        """Completed requests by interval and whether their label was right (1, else 0), where that is known."""
        known = self.completed & (self["right"] != ABSENT)
        pairs = _tally(self.interval[known], self["right"][known])
        return [(interval, right, n) for (interval, right), n in pairs]

    def sends(self) -> list[tuple[int, int, int, int]]:
        """Requests that were sent, by the intervals of their intended start, of their slot and of their send."""
        sent = self.was_sent
        admitted, at = (
            (instants[sent] - self.grid.window_ns) // self.grid.interval_ns
            for instants in (self["admitted"], self.sent)
        )
        return [(a, b, c, n) for (a, b, c), n in _tally(self.interval[sent], admitted, at)]

    def excused(self) -> list[tuple[int, int]]:
        """Requests that were not sent though the generator was in time, by interval.

        They never had a slot, or there was nothing to send. Not excused: had a slot and was not sent before the stop.
        """
        given_up = self.of(lambda account: account == UNFINISHED) & (self["admitted"] != ABSENT)
        interval = self.interval[(self.sent == ABSENT) & ~given_up]
        return [(key, n) for (key,), n in _tally(interval)]

    def token_totals(self) -> list[TokenTotals]:
        """Token sums of the completed requests by interval."""
        there = self.completed
        if not there.any():
            return []
        asked, counted = self["output_asked"], self.by_usage | self.by_token_ids
        pairs = (self["prompt_asked"], self["prompt"], asked, self.output)
        known = [part for values in pairs for part in _known(values)]
        columns = np.stack(
            [
                *known,
                self["chunks"],
                np.where(self.has_token, self.output, 0),
                self["events"],
                self["reads"],
                self.by_usage,
                self.by_token_ids,
                self.by_chunks,
                (asked != ABSENT) & counted & (self.output < asked),
                *(part for name in ("items", "dimensions") for part in _known(self[name])),
            ]
        )[:, there]
        order = np.argsort(self.interval[there], kind="stable")
        intervals, starts = np.unique(self.interval[there][order], return_index=True)
        sums = np.add.reduceat(columns[:, order], starts, axis=1)
        return [TokenTotals(key, *row) for key, row in zip(intervals.tolist(), sums.T.tolist(), strict=True)]


def _content(batch: Batch) -> tuple[Ints, Mask]:
    there = batch.completed & (batch["first_content"] != ABSENT) & (batch["streamed"] == 1)
    return batch["first_content"] - batch.intended, there


def _tpot(batch: Batch) -> tuple[Ints, Mask]:
    # Tokens that came in one chunk leave the time between them unknown.
    several = batch.tokens & (batch.output >= 2) & (batch["chunks"] >= 2)
    return (batch.last_token - batch.first_token) // np.maximum(batch.output - 1, 1), several


LATENCIES: Final[dict[str, Callable[[Batch], tuple[Ints, Mask]]]] = {
    "ttft": lambda batch: (batch.first_token - batch.intended, batch.tokens),
    "service_ttft": lambda batch: (batch.first_token - batch.sent, batch.tokens),
    "ttft_content": _content,
    "tpot": _tpot,
    "response": lambda batch: (batch.end - batch.intended, batch.completed),
    "service": lambda batch: (batch.end - batch.sent, batch.completed),
    "connect": lambda batch: (batch["connect"], batch.completed & (batch["connect"] != ABSENT)),
    "queued": lambda batch: (batch["admitted"] - batch.intended, batch.was_sent),
    "lateness": lambda batch: (batch.sent - batch["admitted"], batch.was_sent),
}
"""The latencies of one value a request, as docs/metrics.md defines them: the values (ns), and which requests have one.
A new one is a line here and a field of `summary.Latencies`. `itl`, of several values a request, is none of them."""


def _known(values: Ints) -> tuple[Ints, Mask]:
    """The values with 0 for those that are not known, and which are."""
    there: Mask = values != ABSENT
    return np.where(there, values, 0), there


def _tally(*columns: Ints) -> list[tuple[tuple[int, ...], int]]:
    """How often each combination of values occurs."""
    if not columns[0].size:
        return []
    keys = np.zeros_like(columns[0])
    for column in columns:
        keys = keys * (column.max() - column.min() + 1) + (column - column.min())
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    return list(zip(rows, counts.tolist(), strict=True))
