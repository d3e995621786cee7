"""What became of one request: the instants that its target saw, and the account in which it ended.

An `Exchange` is filled in by a target while the answer comes, so that whatever ends the request early (a deadline, a
drain, a user) leaves what had been seen by then. An `Outcome` is the finished record of one request.
"""

from array import array
from collections import Counter
from typing import Final

import msgspec

COMPLETED: Final = "completed"
CANCELLED: Final = "cancelled"
DROPPED: Final = "dropped"
LOST: Final = "lost"
UNFINISHED: Final = "unfinished"
FAILED: Final = "failed:"
"""Prefix of the accounts of failed requests; what follows is the kind, e.g. `failed:http_503` or `failed:timeout`."""

TIMEOUT: Final = "timeout"
"""The kind of failure where the client's own `timeout` ended the request: its age is a lower bound."""


class Exchange(msgspec.Struct):
    """One request as its target sees it, from the send to the end. All instants are monotonic ns; absent is None.

    A target sets `failure` for a request that did not succeed and leaves it None for one that did; it never raises for
    a failed request.
    """

    streamed: bool = True
    request_id: str | None = None
    """By which the target names the request in its own log: its `X-Request-Id`, or the engine's id."""
    texts: "list[str] | None" = None
    """Who wants the answer's text sets this to an empty list; the target then appends each piece as it comes. A target
    whose answers have none sets it to None."""
    connect_ns: int | None = None
    """How long a new connection took (ns, a length and not an instant); None where one was reused."""
    headers_ns: int | None = None
    first_content_ns: int | None = None
    """The first chunk with visible content, where the first token-bearing one may be reasoning or a tool call."""
    end_ns: int | None = None
    chunks_ns: "array[int]" = msgspec.field(default_factory=lambda: array("q"))
    """The instant of each token-bearing chunk of a streamed answer, in order."""
    chunk_tokens: "array[int] | None" = None
    """Tokens of each chunk where the target knows them (an engine does; over HTTP only the sum is known)."""
    prompt_tokens: int | None = None
    """As the server counted them (`usage.prompt_tokens`)."""
    output_tokens: int | None = None
    """`usage.completion_tokens`, else token ids seen; None where only chunks were seen."""
    finish_reason: str | None = None
    label: str | None = None
    """Of an answer that is one of the labels allowed: which."""
    items: int | None = None
    """How many of what a request has several of came back: vectors, or tokens with a score."""
    dimensions: int | None = None
    """Length of each vector that came back."""
    retries: int = 0
    """How often the request was sent again since the server asked it to wait."""
    status: int | None = None
    failure: str | None = None
    """Kind of failure: `http_503`, `connect`, `timeout`, `disconnect`, `protocol`, `abort`, ... (docs/metrics.md)."""
    target_gone: bool = False
    """The target itself is gone for good: nothing more can be sent to it."""
    message: str = ""
    """The server's or the library's own words for the failure, one line."""
    events: int = 0
    reads: int = 0


class Outcome(msgspec.Struct, frozen=True):
    """One request's end, as recorded. Instants in monotonic ns.

    `sent_ns` is None where the request never was handed to the session (dropped, or unfinished in a queue); then
    `exchange` is empty. `end_ns` is the instant at which the account was decided.
    """

    stage: int
    index: int
    account: str
    intended_ns: int
    admitted_ns: int | None
    sent_ns: int | None
    end_ns: int
    prompt_tokens_asked: int | None
    output_tokens_asked: int | None
    exchange: Exchange
    expected: str | None = None
    """The label that is the right answer, where the workload knows one."""
    again: bool = False
    """An earlier request of the run said the same."""


class Grid(msgspec.Struct, frozen=True):
    """The time axis of a stage: intervals and bins counted from the start of its window (negative in the warm-up).

    Latencies are kept by the interval of their intended start; rates and levels by the bin (a tenth of an interval) of
    their own instant.
    """

    origin_ns: int
    """The instant at which the stage's arrival process starts."""
    window_ns: int
    """The instant at which its window starts: the origin plus an explicit warm-up."""
    interval_ns: int
    """Length of an interval, a multiple of `BINS_PER_INTERVAL`."""

    @property
    def bin_ns(self) -> int:
        return self.interval_ns // BINS_PER_INTERVAL

    def interval_of(self, instant_ns: int) -> int:
        return (instant_ns - self.window_ns) // self.interval_ns

    def bin_of(self, instant_ns: int) -> int:
        return (instant_ns - self.window_ns) // self.bin_ns


BINS_PER_INTERVAL: Final = 10


class Books(msgspec.Struct, frozen=True):
    """The accounts: every intended request stands in exactly one of the others."""

    intended: int
    completed: int
    failed: dict[str, int]
    cancelled: int
    dropped: int
    lost: int
    unfinished: int

    @property
    def failures(self) -> int:
        return sum(self.failed.values())

    @property
    def ended(self) -> int:
        """Sum of all accounts; the books balance when it equals `intended`."""
        return self.completed + self.failures + self.cancelled + self.dropped + self.lost + self.unfinished


def books_of(accounts: Counter[str], intended: int | None = None) -> Books:
    """Accounts by name as books; without a number of their own, those were intended that stand in an account."""
    return Books(
        intended=accounts.total() if intended is None else intended,
        completed=accounts[COMPLETED],
        failed={name.removeprefix(FAILED): n for name, n in sorted(accounts.items()) if name.startswith(FAILED)},
        cancelled=accounts[CANCELLED],
        dropped=accounts[DROPPED],
        lost=accounts[LOST],
        unfinished=accounts[UNFINISHED],
    )
