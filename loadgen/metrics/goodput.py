"""Which requests count as goodput: completed, and within every latency limit by their own values."""

import numpy as np

from loadgen.metrics.batch import Batch, Mask
from loadgen.metrics.histogram import as_decimal
from loadgen.metrics.slo import Slo
from loadgen.metrics.summary import PERCENTILES


def good(slo: Slo, batch: Batch) -> Mask:
    """The completed requests that met the limits of `slo`.

    A request's own value of a latency must be at most the largest limit on it. For `itl`, of each percentile p given,
    the share of its gaps that exceed the limit must be at most 1 - p. What a request does not have (a gap, where it has
    one chunk; a TTFT, where it is not streamed) it does not miss.
    """
    met = batch.completed.copy()
    latencies = batch.latencies()
    for name in ("ttft", "tpot", "response", "service"):
        limits = getattr(slo, name)
        if limits:
            values, there = latencies[name]
            met &= ~there | (values <= max(limits.values()))
    gaps = np.bincount(batch.gap_owner, minlength=batch.size)
    for percentile, limit in slo.itl.items():
        over = np.bincount(batch.gap_owner[batch.gaps > limit], minlength=batch.size)
        share = 1 - as_decimal(PERCENTILES[percentile])
        met &= over * share.denominator <= gaps * share.numerator
    return met
