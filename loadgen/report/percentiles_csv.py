"""`percentiles.csv`: the percentiles of every stage as a table."""

import csv
import io
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from loadgen.profile.slo import PERCENTILES
from loadgen.report.summary_json import as_plain
from loadgen.report.tables import is_sufficient
from loadgen.summary.summary import Latencies, Latency, Stage, Summary

_CSV_COLUMNS: Final = (
    "stage",
    "metric",
    "percentile",
    "value_seconds",
    "ci_low",
    "ci_high",
    "sufficient",
    "at_least",
    "count",
)


def to_csv(summary: Summary) -> bytes:
    """One row for each stage, latency and percentile; an empty cell is not known, and `ci_high` is empty where open.

    At the end stand `purpose` and `repeat`, where a stage has them, and a column for each swept key.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    conditions = [_condition(stage) for stage in summary.stages]
    more = list(dict.fromkeys(key for condition in conditions for key in condition))
    writer.writerow((*_CSV_COLUMNS, *more))
    for stage, condition in zip(summary.stages, conditions, strict=True):
        cells = [condition.get(key) for key in more]
        writer.writerows((*row, *cells) for row in _rows(stage))
    return text.getvalue().encode()


def _condition(stage: Stage) -> dict[str, object]:
    """What tells the stage from others of its run, by column; what it does not have is not there."""
    told = {"purpose": stage.purpose, "repeat": stage.repeat}
    settings = {key: value if isinstance(value, str) else _json(value) for key, value in stage.settings.items()}
    return {**{name: value for name, value in told.items() if value is not None}, **settings}


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=as_plain).decode()


def _rows(stage: Stage) -> Iterator[tuple[object, ...]]:
    for metric, latency in _all_named(stage.latency_seconds):
        for percentile in PERCENTILES:
            low, high = latency.ci.get(percentile, (None, None))
            yield (
                stage.name,
                metric,
                percentile,
                latency.percentile(percentile),
                low,
                high,
                _boolean(is_sufficient(latency, percentile)),
                _boolean(latency.at_least.get(percentile, False)),
                latency.count,
            )


def _all_named(latencies: Latencies) -> Iterator[tuple[str, Latency]]:
    yield from latencies.named().items()
    for kind, latency in sorted(latencies.failed.items()):
        yield f"failed:{kind}", latency


def _boolean(value: bool) -> str:
    return "true" if value else "false"
