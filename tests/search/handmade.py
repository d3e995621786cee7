"""Stages made by hand as a search asks for them: what it is sent, without a target."""

from loadgen.load.stages import StagePlan
from loadgen.measure.outcome import Books
from loadgen.summary.summary import Latencies, Latency, Stage, Stationary, Throughput, Window
from tests import handmade


def latency(
    low: float, value: float, high: float | None, count: int = 10_000, p50: tuple[float, float] | None = None
) -> Latency:
    """p99 and its interval, in seconds; the other percentiles lie far below, p50 where it is told."""
    ci: dict[str, tuple[float, float | None]] = {"p99": (low, high)}
    if p50 is not None:
        ci["p50"] = p50
    least = value / 1000
    return Latency(
        count=count, mean=least, stddev=0.0, min=least, max=10 * value, p50=least, p90=least, p95=least, p99=value,
        p99_9=value, ci=ci,
    )  # fmt: skip


def stage(
    plan: StagePlan | None = None,
    *,
    ttft: Latency | None = None,
    service: float | None = 1.0,
    counted: Books | None = None,
    completed: float | None = None,
    seconds: float = 100.0,
    growing: bool = False,
    verdict: str = "too_short",
    faults: tuple[str, ...] = (),
    rate: float | None = 100.0,
) -> Stage:
    """A stage of a plan, or else of a rate: `seconds` long, which completed what it was offered unless told."""
    counted = counted or handmade.books()
    if plan is not None:
        rate = plan.offered_rate
    mean = None if service is None else latency(service, service, service)
    if mean is not None:
        mean = Latency(**{**{name: getattr(mean, name) for name in mean.__struct_fields__}, "mean": service or 0.0})
    return handmade.stage(
        "by hand" if plan is None else plan.name,
        Window(0.0, seconds, counted, counted.intended),
        kind="poisson" if plan is None else plan.kind,
        throughput=Throughput(counted.completed / seconds if completed is None else completed, 0.0, 0.0),
        latency_seconds=Latencies(ttft=ttft, service=mean),
        stationary=Stationary(verdict, "as told by hand", growing),
        offered_rate=rate,
        intended_concurrency=None if plan is None else plan.concurrency,
        purpose=None if plan is None else plan.purpose,
        generator_faults=list(faults),
    )
