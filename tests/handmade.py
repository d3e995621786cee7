"""Measured stages, made by hand: what judges, reports and searches are given, without a run."""

from typing import Any

from loadgen.measure.outcome import Books
from loadgen.summary.summary import Concurrency, Stage, Tokens, Window


def books(intended: int = 10_000, failed: int = 0, dropped: int = 0) -> Books:
    """All others completed."""
    kinds = {"http_503": failed} if failed else {}
    return Books(intended, intended - failed - dropped, kinds, 0, dropped, 0, 0)


def stage(name: str, window: Window, **fields: Any) -> Stage:
    """A stage with no requests but those of its window; keywords are the fields that are not as plain as can be."""
    plain: dict[str, Any] = {
        "kind": "poisson",
        "concurrency": Concurrency(1.0, 1),
        "tokens": Tokens("usage"),
        "short": 0,
        "ended_by": "duration",
    }
    return Stage(name=name, books=window.books, window=window, **{**plain, **fields})
