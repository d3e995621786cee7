"""How many requests are in flight, by bin: its exact integral over time and its largest value."""

from array import array

import numpy as np
from numpy.typing import NDArray

from loadgen.measure.delta import IN_FLIGHT_INTEGRAL, IN_FLIGHT_MAX, SENT, Column, column_of
from loadgen.measure.outcome import Grid
from loadgen.statistics.histogram import Ints

_ENTERED = 1


class Level:
    """A count that goes up and down, folded into the bins of a grid.

    Calls only note an instant (about 0.1 us); `fold` does the sums. Instants need not come in order: one that is
    earlier than the last fold still counts in full in the integral, but no more for the maximum of bins told before.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        # An instant and a direction in one integer, which sorts by instant, those who left first: a slot that is
        # taken the moment it is freed was not in use twice.
        self._moves = array("q")
        self._now = 0
        self._folded = 0
        self._folded_to_ns: int | None = None
        self._told_bin = 0
        self._told_max = 0

    @property
    def now(self) -> int:
        """How many are inside at present."""
        return self._now

    def entered(self, instant_ns: int) -> None:
        self._now += 1
        self._moves.append(instant_ns << 1 | _ENTERED)

    def left(self, instant_ns: int) -> None:
        self._now -= 1
        self._moves.append(instant_ns << 1)

    def fold(self, now_ns: int) -> list[Column]:
        """What there is to add to the sums of each bin, up to `now_ns` or the last move, whichever is later."""
        moves = np.sort(np.frombuffer(self._moves, np.int64))
        self._moves = array("q")
        if not moves.size and not self._folded:
            self._folded_to_ns = now_ns
            return []
        instants, signs = moves >> 1, ((moves & _ENTERED) << 1) - 1
        since = now_ns if self._folded_to_ns is None else self._folded_to_ns
        if self._folded_to_ns is None and moves.size:
            since = int(instants[0])
        until = max(now_ns, since, int(instants[-1]) if moves.size else since)
        columns = [
            self._integral(instants, signs, since, until),
            self._maximum(np.maximum(instants, since), signs, since, until),
        ]
        if (entries := instants[signs > 0]).size:
            bins = (entries - self._grid.window_ns) // self._grid.bin_ns
            columns.append(column_of(SENT, int(bins[0]), np.bincount(bins - bins[0])))
        self._folded += int(signs.sum())
        self._folded_to_ns = until
        return columns

    def _edges(self, first: int, last: int) -> Ints:
        """The starts of the bins `first` to `last`."""
        return self._grid.window_ns + np.arange(first, last + 1, dtype=np.int64) * self._grid.bin_ns

    def _integral(self, instants: Ints, signs: Ints, since: int, until: int) -> Column:
        """Bin integrals as differences of F(x) = level * (x - since) + sum over moves before x of sign * (x - t)."""
        first = self._grid.bin_of(min(since, int(instants[0]) if instants.size else since))
        edges = np.append(self._edges(first, self._grid.bin_of(until)), until)
        zero = edges[0]  # times are taken from here, which keeps products within 63 bits
        heights = np.concatenate(([0], np.cumsum(signs)))
        moments = np.concatenate(([0], np.cumsum(signs * (instants - zero))))
        before = np.searchsorted(instants, edges)
        up_to = heights[before] * (edges - zero) - moments[before] + self._folded * np.maximum(edges - since, 0)
        return column_of(IN_FLIGHT_INTEGRAL, first, np.diff(up_to))

    def _maximum(self, instants: Ints, signs: Ints, since: int, until: int) -> Column:
        """By how much the largest level of each bin exceeds what was told of the bin before."""
        first, last = self._grid.bin_of(since), self._grid.bin_of(until)
        levels = self._folded + np.concatenate(([0], np.cumsum(signs)))
        highest: NDArray[np.int64] = levels[np.searchsorted(instants, self._edges(first, last))]
        highest[0] = self._folded
        np.maximum.at(highest, (instants - self._grid.window_ns) // self._grid.bin_ns - first, levels[1:])
        told = self._told_max if self._told_bin == first else 0
        self._told_bin, self._told_max = last, max(int(highest[-1]), told if last == first else 0)
        highest[0] = max(int(highest[0]) - told, 0)
        return column_of(IN_FLIGHT_MAX, first, highest)
