"""The sources of requests by name. A new source is one new file and one line in the table."""

import secrets
from collections.abc import Callable
from typing import Final, Protocol

from loadgen import profile
from loadgen.workload.dataset import DatasetWorkload
from loadgen.workload.request import Request, Tokenization
from loadgen.workload.synthetic import SyntheticWorkload


class Workload(Protocol):
    """What each request of a run says."""

    def request(self, index: int) -> Request:
        """Request `index` (0, 1, ...) of the run: the same in every process, in any order, as often as it is
        asked for."""
        ...


SOURCES: Final[dict[str, Callable[[profile.Workload, Tokenization, int], Workload]]] = {
    "synthetic": SyntheticWorkload,
    "dataset": DatasetWorkload,
}


def make_workload(workload: profile.Workload, tokenization: Tokenization, nonce: int) -> Workload:
    """The workload that the profile names. All processes of a run are given the same tokenization and the
    same nonce.

    Raises:
        LoadgenError: a library that the workload needs is not installed, or its file cannot be read.
    """
    return SOURCES[workload.source](workload, tokenization, nonce)


def workload_nonce(workload: profile.Workload) -> int:
    """The nonce of a run: the profile's own, 0 without cache busting, else 32 fresh random bits.

    With n runs against one server, two of them share a nonce with a probability of about n^2 / 2^33.
    """
    if workload.nonce is not None:
        return workload.nonce
    return secrets.randbits(32) if workload.cache_bust else 0
