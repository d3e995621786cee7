"""What a process of the generator costs."""

import anyio
import pytest
from trio.testing import MockClock

from loadgen.clock import LoopClock
from loadgen.units import NS_PER_SECOND
from loadgen.workers.vitals import BusiestSecond


@pytest.mark.parametrize(
    ("shares", "busiest"),
    # What counts is the busiest second, whatever came before and after; before the first is over nothing is known.
    [([0.1, 0.95, 0.2], 0.95), ([0.5], 0.5), ([0.0, 0.0], 0.0), ([], None)],
)
def test_the_busiest_second_counts_and_no_mean_hides_it(shares: list[float], busiest: float | None) -> None:
    used = [0.0]
    for share in shares:
        used.append(used[-1] + share)
    readings = iter(round(seconds * NS_PER_SECOND) for seconds in used)
    found = BusiestSecond(lambda: next(readings))

    async def main() -> None:
        with anyio.move_on_after(len(shares) + 0.5):
            await found.watch(LoopClock())

    anyio.run(main, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})
    assert found.share == (None if busiest is None else pytest.approx(busiest))
