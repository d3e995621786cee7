"""What the faults asked for do to each request of the simulated server."""

import random
from typing import NamedTuple

from loadgen.sim.api.protocol import ApiError
from loadgen.sim.config import SimFaults


class Fate(NamedTuple):
    """What the faults do to one request."""

    silent: bool
    fails: bool
    aborts: bool
    disconnects: bool


class Fates:
    """Draws each request's fate, in the order of arrival."""

    def __init__(self, faults: SimFaults) -> None:
        self._faults = faults
        self._random = random.Random(faults.seed)  # noqa: S311 - a simulation
        self._count = 0

    def draw(self) -> Fate:
        """The next request's fate."""
        faults = self._faults
        silent = faults.silent_after is not None and self._count >= faults.silent_after
        self._count += 1
        rates = (faults.error_rate, faults.abort_rate, faults.disconnect_rate)
        # Always three draws, so that one fault's rate does not change when another strikes.
        return Fate(silent, *(self._random.random() < rate for rate in rates))


def failure(faults: SimFaults) -> ApiError:
    """The error answer of a request that fails; `Retry-After` goes with the statuses that may have it."""
    headers = {}
    if faults.retry_after is not None and faults.error_status in (429, 503):
        headers["Retry-After"] = str(faults.retry_after)
    words = "A fault asked for by the settings."
    return ApiError(faults.error_status, words, "InternalServerError", headers=headers)
