"""The stages of a run as they end: each measured from its journal, and whether its numbers are the generator's."""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import overload

from msgspec.structs import replace

from loadgen.judge.verdict import generator_faults
from loadgen.measure.run_journal import RunJournal, read_overview
from loadgen.summary.interim import InterimLook
from loadgen.summary.stage import Measured, measure
from loadgen.summary.summary import Stage


class StagesSoFar(Sequence[Stage]):
    """The first `ended` stages of a run, which have ended. Each is measured when it is first looked at, and once."""

    def __init__(self, directory: Path, ended: int = 0) -> None:
        self.ended = ended
        self._directory = directory
        self._measured: list[Measured] = []
        self._lowest: float | None = None
        self._measuring = Lock()

    def __len__(self) -> int:
        return self.ended

    @overload
    def __getitem__(self, index: int) -> Stage: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Stage]: ...
    def __getitem__(self, index: int | slice) -> Stage | Sequence[Stage]:
        if len(self._measured) < self.ended:
            self.measured(read_overview(self._directory))
        return [one.finding.stage for one in self._measured][index]

    def measured(self, run: RunJournal) -> list[Measured]:
        """All of them, with what a verdict needs."""
        with self._measuring:  # a look may do it in a thread of its own
            for meta in run.metas[len(self._measured) : self.ended]:
                one = _judged(measure(self._directory, run, meta, self._lowest))
                self._lowest = one.lowest_service_seconds
                self._measured.append(one)
        return self._measured

    def look(self, at: InterimLook, number: int) -> Stage | None:
        """The stage that is under way, as far as all that was intended has ended; None where nothing has."""
        run = read_overview(self._directory)
        self.measured(run)
        meta = next(meta for meta in run.metas if meta.stage == number)
        if at.intervals(meta.grid) < 1:
            return None
        return _judged(measure(self._directory, run, meta, self._lowest, at)).finding.stage


def _judged(measured: Measured) -> Measured:
    """The stage with what of its numbers is the generator's fault."""
    finding = measured.finding
    stage = replace(finding.stage, generator_faults=generator_faults(finding))
    return replace(measured, finding=replace(finding, stage=stage))
