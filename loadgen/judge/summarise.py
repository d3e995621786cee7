"""From the journal of a run to its summary; the same path for a run that just ended, one of last year, a killed one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadgen.judge.repeats import repeats_of
from loadgen.judge.slo import check, verdict_of
from loadgen.judge.stages import StagesSoFar
from loadgen.judge.verdict import judge
from loadgen.measure.run_journal import RunJournal, read_overview
from loadgen.summary.generator import generator_of
from loadgen.summary.summary import SloCheck, SloVerdict, Stage, Summary


def summarise(directory: Path) -> Summary:
    """The summary of the run in `directory`, from its journal alone.

    A run that was killed is summarised as far as it came; its verdict says so.

    Raises:
        NoJournal: the directory holds no run.
    """
    run = read_overview(directory)
    measured = StagesSoFar(directory, len(run.metas)).measured(run)
    findings = [stage.finding for stage in measured]
    stages = [finding.stage for finding in findings]
    end = run.end
    return Summary(
        name=run.header.name,
        started_at=run.header.started_at,
        verdict=judge(
            findings,
            end,
            [f"Worker {death.worker} (pid {death.pid}) died: {death.reason}." for death in run.deaths],
            _told(run),
            _slo_verdict(run, stages),
        ),
        stages=stages,
        repeats=repeats_of(stages),
        generator=generator_of(run, measured),
        environment=_environment(run),
        profile=run.header.profile,
        simulated=run.header.simulated,
        interrupted=end is not None and end.interrupted,
        failure=None if end is None else end.failure,
    )


def _slo_verdict(run: RunJournal, stages: Sequence[Stage]) -> SloVerdict | None:
    """Each stage held against its promises; a probe of a search, which tries where they break, against none."""
    checks: list[SloCheck] = []
    promised = False
    for meta, stage in zip(run.metas, stages, strict=True):
        slo = run.slo(meta)
        if slo is not None and not stage.asked_by_search:
            promised = True
            checks += check(slo, [stage]).checks
    return verdict_of(checks) if promised else None


def _told(run: RunJournal) -> list[str]:
    """The warnings of the check, of the targets that workers started, and of the run's end; each once."""
    opened = [warning for record in run.opened for warning in record.warnings]
    return list(dict.fromkeys([*run.header.warnings, *opened, *(run.end.warnings if run.end is not None else ())]))


def _environment(run: RunJournal) -> dict[str, Any]:
    """As the run began, completed by what the first target that a worker started told of itself."""
    if not run.opened:
        return run.header.environment
    facts = run.opened[0].facts.items()
    told = {name: value for name, value in facts if name != "warnings" and value not in (None, "", [], {})}
    return {**run.header.environment, "target": {**run.header.environment.get("target", {}), **told}}
