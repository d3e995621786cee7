"""What the tests of the workers share: virtual time, and a simulated engine whose answers take a known time."""

import pytest
from trio.testing import MockClock

from loadgen.clock import LoopClock


@pytest.fixture
def anyio_backend():
    """trio in virtual time: a wait costs nothing, and every instant is exact."""
    return ("trio", {"clock": MockClock(autojump_threshold=0)})


@pytest.fixture
def clock() -> LoopClock:
    return LoopClock()
