"""Builders of summaries: complete and plausible where nothing is said, and otherwise as a test says."""

from typing import Any

import msgspec
import pytest

from loadgen.measure.outcome import Books
from loadgen.measure.running import Live
from loadgen.profile.slo import PERCENTILES
from loadgen.summary.summary import (
    Concurrency,
    Generator,
    Latencies,
    Latency,
    SearchPoint,
    SearchResult,
    Series,
    SloCheck,
    SloVerdict,
    Stage,
    Stationary,
    Summary,
    Throughput,
    Tokens,
    Verdict,
    Window,
    WorkerReport,
)


class Build:
    """Builds the parts of a summary; keywords replace fields of the plausible ones."""

    def latency(self, p50: float = 0.1, count: int = 20_000, **fields: Any) -> Latency:
        """A latency of this median, with all percentiles sufficient and closed unless told otherwise."""
        values = {"p50": p50, "p90": 1.5 * p50, "p95": 1.7 * p50, "p99": 2 * p50, "p99.9": 3 * p50}
        defaults: dict[str, Any] = {
            "mean": 1.1 * p50,
            "stddev": 0.3 * p50,
            "min": 0.5 * p50,
            "max": 4 * p50,
            "ci": {name: (0.95 * value, 1.05 * value) for name, value in values.items()},
            "sufficient": {name: count * (1 - fraction) >= 9.999 for name, fraction in PERCENTILES.items()},
        }
        values = {name.replace(".", "_"): value for name, value in values.items()}
        return Latency(count=count, **{**values, **defaults, **fields})

    def books(self, completed: int = 1000, failed: dict[str, int] | None = None, **fields: int) -> Books:
        """Books that balance, unless `intended` says otherwise."""
        failed = failed or {}
        others = {name: fields.get(name, 0) for name in ("cancelled", "dropped", "lost", "unfinished")}
        ended = completed + sum(failed.values()) + sum(others.values())
        return Books(intended=fields.get("intended", ended), completed=completed, failed=failed, **others)

    def series(self, intervals: int = 30) -> Series:
        """One interval a second, with a gap in the latencies at the third."""
        gap: list[float | None] = [None if i == 2 else 0.1 + 0.01 * i for i in range(intervals)]
        return Series(
            interval=1.0,
            start=[float(i) for i in range(intervals)],
            arrivals=[20] * intervals,
            completed=[19] * intervals,
            failed=[1] * intervals,
            output_tokens=[2500.0] * intervals,
            in_flight=[12.5] * intervals,
            ttft_p50=gap,
            ttft_p99=[None if value is None else 2 * value for value in gap],
            response_p50=gap,
            response_p99=[None if value is None else 3 * value for value in gap],
        )

    def curve(self, p50: float = 0.1) -> list[tuple[float, float]]:
        fractions = (0.0, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999, 1.0)
        return [(fraction, p50 * (1 + i)) for i, fraction in enumerate(fractions)]

    def stage(self, name: str = "poisson 20/s", **fields: Any) -> Stage:
        """A stable stage of a streamed load."""
        books = fields.pop("books", self.books())
        window_books = fields.pop("window_books", books)
        defaults: dict[str, Any] = {
            "kind": "poisson",
            "books": books,
            "window": Window(start=5.0, seconds=55.0, books=window_books, sent=window_books.intended),
            "throughput": Throughput(requests=19.8, output_tokens=2531.0, prompt_tokens=10120.0),
            "concurrency": Concurrency(mean=12.3, max=31),
            "latency_seconds": Latencies(
                ttft=self.latency(0.05),
                service_ttft=self.latency(0.049),
                itl=self.latency(0.012, count=250_000),
                tpot=self.latency(0.013),
                response=self.latency(1.6),
                service=self.latency(1.59),
                queued=self.latency(0.00002),
                lateness=self.latency(0.00009),
            ),
            "tokens": Tokens(
                counted_by="usage", prompt_asked=512.0, prompt=519.0, output_asked=128.0, output=128.0, per_chunk=1.0
            ),
            "stationary": Stationary("stable", "as many requests ended as arrived"),
            "short": 0,
            "ended_by": "duration",
            "offered_rate": 20.0,
            "series": self.series(),
            "curves": {"ttft": self.curve(0.05), "itl": self.curve(0.012), "response": self.curve(1.6)},
        }
        return Stage(name=name, **{**defaults, **fields})

    def silent_stage(self, **fields: Any) -> Stage:
        """A stage in which every request failed."""
        defaults: dict[str, Any] = {
            "books": self.books(completed=0, failed={"connect": 40}),
            "latency_seconds": Latencies(),
            "curves": {},
            "series": None,
            "throughput": Throughput(requests=0.0, output_tokens=0.0, prompt_tokens=0.0),
            "tokens": Tokens(counted_by="usage"),
            "stationary": Stationary("too_short", "no request completed"),
        }
        return self.stage(**{**defaults, **fields})

    def point_stage(self, rate: float, **fields: Any) -> Stage:
        """A stage of a sweep at this rate, which completes what is offered."""
        throughput = Throughput(requests=rate, output_tokens=128.0 * rate, prompt_tokens=512.0 * rate)
        return self.stage(f"poisson {rate:g}/s", **{"offered_rate": rate, "throughput": throughput, **fields})

    def search_stages(self) -> list[Stage]:
        """The stages of a short search: low load, two rates that are sustained, and one that is not."""
        low = self.stage(
            "concurrency 1",
            kind="concurrency",
            purpose="low load",
            offered_rate=None,
            intended_concurrency=1,
            throughput=Throughput(requests=0.625, output_tokens=80.0, prompt_tokens=320.0),
        )
        verdicts = {10.0: "stable", 40.0: "unstable", 20.0: "stable"}
        return [
            low,
            *(
                self.point_stage(rate, purpose="double", stationary=Stationary(verdict, "as told"))
                for rate, verdict in verdicts.items()
            ),
        ]

    def search(self, **fields: Any) -> SearchResult:
        """What the search over `search_stages` found."""
        told = (
            ("low load", "measured", "a request takes 1.6 s", None),
            ("double", "pass", "all that came went", 10.0),
            ("double", "fail", "30 % more came than went", 40.0),
            ("bisect", "pass", "all but 1 % of what came went", 20.0),
        )
        defaults: dict[str, Any] = {
            "kind": "saturate",
            "objective": "rate",
            "ended_by": "found",
            "reason": "the ends are close enough",
            "points": [SearchPoint(place, *point, seconds=60.0) for place, point in enumerate(told)],
            "saturation": 20.0,
            "bracket": (20.0, 40.0),
            "tolerance": 0.05,
            "evidence": (3, 2),
        }
        return SearchResult(**{**defaults, **fields})

    def check(self, outcome: str = "met", **fields: Any) -> SloCheck:
        defaults: dict[str, Any] = {
            "stage": "poisson 20/s",
            "metric": "ttft",
            "percentile": "p99",
            "limit": 0.5,
            "value": 0.1,
            "ci": (0.09, 0.12),
        }
        return SloCheck(outcome=outcome, **{**defaults, **fields})

    def verdict(self, **fields: Any) -> Verdict:
        return Verdict(**{"valid": True, "reasons": [], "warnings": [], **fields})

    def slo(self, met: bool | None, *checks: SloCheck) -> SloVerdict:
        return SloVerdict(met=met, checks=list(checks))

    def worker(self, number: int = 0, **fields: Any) -> WorkerReport:
        defaults: dict[str, Any] = {
            "pid": 4000 + number,
            "cpu": 0.31,
            "rss_bytes": 84_000_000,
            "restarts": 0,
            "deaths": [],
            "gc_seconds": 0.012,
            "gc_max_seconds": 0.003,
        }
        return WorkerReport(worker=number, **{**defaults, **fields})

    def generator(self, **fields: Any) -> Generator:
        defaults: dict[str, Any] = {
            "workers": [self.worker(0), self.worker(1)],
            "parent_cpu": 0.034,
            "credits_exhausted_seconds": 0.0,
            "lateness": self.latency(0.00009),
            "loop_lag": self.latency(0.0002),
        }
        return Generator(**{**defaults, **fields})

    def summary(self, *stages: Stage, **fields: Any) -> Summary:
        """A valid run of the given stages, or of one plausible stage."""
        defaults: dict[str, Any] = {
            "name": "poisson",
            "started_at": "2026-01-02T03:04:05+01:00",
            "verdict": self.verdict(),
            "stages": list(stages) or [self.stage()],
            "generator": self.generator(),
            "environment": {"loadgen": "0.1.0", "python": "3.11.7", "target": {"version": "0.30.0", "model": "tiny"}},
            "profile": {"name": "poisson", "load": {"kind": "poisson", "rate": 20.0, "duration": "60s"}},
        }
        return Summary(**{**defaults, **fields})

    def live(self, **fields: Any) -> Live:
        """Half of an open-loop stage of one minute."""
        defaults: dict[str, Any] = {
            "stage": "poisson 20/s",
            "stage_number": 1,
            "stages": 1,
            "elapsed_seconds": 30.0,
            "duration_seconds": 60.0,
            "requests": None,
            "offered_rate": 20.0,
            "concurrency": None,
            "draining": False,
            "books": self.books(completed=590, failed={"http_429": 3}),
            "in_flight": 12,
            "achieved_rate": 19.9,
            "completed_rate": 19.7,
            "output_token_rate": 2521.0,
            "lateness_p99": 0.0002,
            "percentiles": {
                "ttft": {"p50": 0.05, "p90": 0.075, "p99": 0.1},
                "itl": {"p50": 0.012, "p90": 0.014, "p99": 0.03},
                "response": {"p50": 1.6, "p90": 2.0, "p99": 3.2},
            },
            "warnings": [],
        }
        return Live(**{**defaults, **fields})

    def replaced(self, stage: Stage, **latencies: Latency | None) -> Stage:
        """The stage with these latencies in place of its own."""
        return msgspec.structs.replace(
            stage, latency_seconds=msgspec.structs.replace(stage.latency_seconds, **latencies)
        )


@pytest.fixture
def build() -> Build:
    return Build()
