"""The simulated server's `/metrics`: vLLM's metric names, read off the engine when they are asked for."""

from collections.abc import Iterable, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from loadgen.sim.engine.engine import Engine
from loadgen.sim.engine.statistics import Buckets


class Exposition:
    """The metrics of one engine in a registry of their own."""

    def __init__(self, engine: Engine, successes: Mapping[str, int]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(engine, successes))

    def text(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    def __init__(self, engine: Engine, successes: Mapping[str, int]) -> None:
        self._engine = engine
        self._successes = successes
        self._labels = {"engine": "0", "model_name": engine.config.model}

    def collect(self) -> Iterable[Metric]:
        engine = self._engine
        statistics = engine.statistics
        yield self._gauge("num_requests_running", "Number of requests in the batch.", engine.running)
        yield self._gauge("num_requests_waiting", "Number of requests in the queue.", engine.waiting)
        yield self._gauge("kv_cache_usage_perc", "KV cache in use, 1 for all of it.", engine.kv_usage)
        yield self._counter("num_preemptions", "Number of preemptions.", engine.preemptions)
        yield self._counter("prompt_tokens", "Number of prefill tokens processed.", statistics.prompt_tokens)
        yield self._counter("generation_tokens", "Number of tokens generated.", statistics.generation_tokens)
        yield self._request_success()
        for name, text, buckets in (
            ("time_to_first_token_seconds", "Time to first token.", statistics.ttft),
            ("inter_token_latency_seconds", "Time between tokens.", statistics.itl),
            ("request_queue_time_seconds", "Time in the queue.", statistics.queue),
            ("e2e_request_latency_seconds", "Time of a whole request.", statistics.e2e),
        ):
            yield self._histogram(name, text, buckets)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _request_success(self) -> Metric:
        labels = [*self._labels, "finished_reason"]
        family = CounterMetricFamily("vllm:request_success", "Number of requests that ended.", labels=labels)
        for reason, count in self._successes.items():
            family.add_metric([*self._labels.values(), reason], count)
        return family

    def _histogram(self, name: str, text: str, buckets: Buckets) -> Metric:
        family = HistogramMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        bounds = [*(str(bound) for bound in buckets.bounds), "+Inf"]
        cumulative = list(zip(bounds, map(float, accumulate(buckets.counts)), strict=True))
        family.add_metric(list(self._labels.values()), cumulative, buckets.sum)
        return family
