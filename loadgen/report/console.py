"""The summary on a terminal: the verdict first, then the numbers. Fits 100 columns, and reads without colour."""

from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadgen.profile.slo import PERCENTILES
from loadgen.report.comparison import checks_tables, points_table, repeats_table
from loadgen.report.lines import Line, failures_over, faults_over, generator_lines, stage_lines
from loadgen.report.points import BAD, DOUBT, GOOD, is_comparison, point_columns, promised_percentiles
from loadgen.report.repeats import MAIN, repeat_rows
from loadgen.report.search import answer_of
from loadgen.report.tables import (
    SIMULATED,
    LatencyRow,
    SloRow,
    brief,
    checks_by_stage,
    latency_rows,
    printable,
    slo_line,
    slo_rows,
)
from loadgen.summary.summary import SloCheck, Stage, Summary, Verdict

_WIDTH: Final = 100
_FEW_PERCENTILES: Final = ("p50", "p99", "p99.9")
_MANY_CHECKS: Final = 12
_FEW_WARNINGS: Final = 4
"""Where stages are compared: most of what is said of each stands in the table."""
_FEW_GENERATOR_LINES: Final = ("lateness", "loop lag")
_TONE_STYLE: Final = {GOOD: "bold green", BAD: "bold red", DOUBT: "bold yellow"}
_OUTCOME_STYLE: Final = {"met": "green", "missed": "bold red", "undecided": "yellow"}
_MET_STYLE: Final = {True: "bold green", False: "bold red", None: "bold yellow"}


def render_summary(summary: Summary, console: Console) -> None:
    """Print the whole summary to `console`: 100 columns wide, less on a terminal that is narrower.

    Nothing in the summary is taken for markup, whatever a server or a profile put there.
    """
    width = console.width
    # Where no terminal sets the width (a pipe, a file), rich assumes 80 columns.
    console.width = min(_WIDTH, width) if console.is_terminal else _WIDTH
    try:
        _print_summary(summary, console)
    finally:
        console.width = width


def _print_summary(summary: Summary, console: Console) -> None:
    comparison = is_comparison(summary)
    if summary.simulated:
        _print(console, Text(SIMULATED, style="bold magenta"))
    _print_verdict(summary.verdict, console, comparison=comparison)
    _print(console, Text(f"{printable(summary.name)}, started {printable(summary.started_at)}", style="dim"))
    if summary.stages and (comparison or len(summary.stages) > 1):
        console.print()
        _print(
            console,
            points_table(point_columns(summary.stages, summary.search, promised_percentiles(summary)), console.width),
        )
    if comparison:
        _print_comparison(summary, console)
    else:
        _print_stages(summary, console)
    _print_heading("generator", console)
    generator = generator_lines(summary.generator)
    _print(console, _lines([line for line in generator if not comparison or line.label in _FEW_GENERATOR_LINES]))
    if comparison:
        _print_answer(summary, console)


def _print_comparison(summary: Summary, console: Console) -> None:
    """What is said of stages that are compared beside the table of their points; the report has each by itself."""
    checks = checks_by_stage(summary.stages, summary.verdict.slo.checks if summary.verdict.slo else [])
    if summary.search is None:
        for table in checks_tables(checks):
            console.print()
            _print(console, table)
    if summary.repeats:
        _print_heading("repeats", console)
        _print(console, repeats_table(repeat_rows(summary.repeats, summary.stages, MAIN)))
    if wrong := [*failures_over(summary.stages), *faults_over(summary.stages)]:
        console.print()
        _print(console, _lines(wrong))


def _print_stages(summary: Summary, console: Console) -> None:
    several = len(summary.stages) > 1
    checks = checks_by_stage(summary.stages, summary.verdict.slo.checks if summary.verdict.slo else [])
    for number, (stage, own) in enumerate(zip(summary.stages, checks, strict=True), 1):
        place = f"stage {number} of {len(summary.stages)}: " if several else ""
        _print_stage(f"{place}{printable(stage.name)}", stage, own, console)


def _print_answer(summary: Summary, console: Console) -> None:
    answer = answer_of(summary)
    if answer is not None:
        console.print()
        _print(console, Text(answer.headline, style=_TONE_STYLE.get(answer.tone, "")))
        _print(console, _lines(answer.lines))


def _roomy(console: Console) -> bool:
    return console.width >= _WIDTH


def _print(console: Console, what: Text | Table) -> None:
    console.print(what, highlight=False)


def _print_heading(title: str, console: Console) -> None:
    console.print()
    _print(console, Text(title, style="bold"))


def _print_verdict(verdict: Verdict, console: Console, *, comparison: bool) -> None:
    if verdict.valid:
        _print(console, Text("VALID", style="bold green"))
    else:
        _print(console, Text("INVALID: these numbers are the generator's, not the target's", style="bold red"))
    reasons = verdict.reasons[:_FEW_WARNINGS] if comparison else verdict.reasons
    for reason in reasons:
        _print(console, _item(reason, "red"))
    if len(verdict.reasons) > len(reasons):
        _print(
            console, _item(f"and {len(verdict.reasons) - len(reasons):,} more reasons, which the reports hold", "red")
        )
    if verdict.slo and verdict.slo.checks:
        _print(console, Text(slo_line(verdict.slo), style=_MET_STYLE[verdict.slo.met]))
        # Where stages are compared a table has the checks of each.
        unmet = [row for row in slo_rows(verdict.slo.checks) if row.outcome != "met" and not comparison]
        for row in unmet[:_MANY_CHECKS]:
            _print(console, _item(f"{row.stage}: {_promise(row)}", _OUTCOME_STYLE.get(row.outcome, "")))
        if len(unmet) > _MANY_CHECKS:
            _print(console, _item(f"and {len(unmet) - _MANY_CHECKS:,} more", ""))
    if comparison:
        _print_few_warnings(verdict.warnings, console)
    else:
        for warning in verdict.warnings:
            _print(console, _item(f"warning: {warning}", "yellow"))


def _print_few_warnings(warnings: list[str], console: Console) -> None:
    """Those of the whole run first, and few: a search of many stages would fill the screen with them."""
    ordered = sorted(warnings, key=lambda warning: warning.startswith("Stage "))
    for warning in ordered[:_FEW_WARNINGS]:
        _print(console, _item(f"warning: {warning}", "yellow"))
    if len(ordered) > _FEW_WARNINGS:
        _print(console, _item(f"and {len(ordered) - _FEW_WARNINGS:,} more warnings, which the reports hold", "yellow"))


def _item(text: str, style: str) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text("  -", style=style), Text(brief(text), style=style))
    return grid


def _promise(row: SloRow) -> str:
    return f"{row.promise}: {row.outcome}, measured {row.value}"


def _print_stage(title: str, stage: Stage, checks: list[SloCheck], console: Console) -> None:
    _print_heading(title, console)
    rows = latency_rows(stage.latency_seconds)
    if rows:
        _print(console, _latencies(rows, tuple(PERCENTILES) if _roomy(console) else _FEW_PERCENTILES))
    else:
        _print(console, Text("no latencies: no request completed in the window"))
    promises = [_promise(row) for row in slo_rows(checks)]
    slo = [Line("" if i else "slo", promise) for i, promise in enumerate(promises)]
    _print(console, _lines(stage_lines(stage) + slo))


def _latencies(rows: list[LatencyRow], names: tuple[str, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, collapse_padding=True, show_edge=False)
    table.add_column("", overflow="fold", min_width=8)
    table.add_column("")
    table.add_column("mean", justify="right")
    for name in names:
        table.add_column(name, justify="left" if name == "p99" else "right", overflow="fold")
    table.add_column("max", justify="right", overflow="fold")
    table.add_column("count", justify="right", overflow="fold")
    width = max((len(row.percentiles["p99"].text) for row in rows if row.percentiles["p99"].known), default=0)
    for row in rows:
        cells = [_percentile(row, name, names[-1], width) for name in names]
        table.add_row(Text(row.metric), row.unit, row.mean, *cells, row.max, row.count)
    return table


def _percentile(row: LatencyRow, name: str, last: str, width: int) -> Text:
    """A cell: p99 with its interval, aligned by itself; how many samples a row has is said once, in its last one."""
    value = row.percentiles[name]
    if not value.known:
        return Text(value.text if name == last else "n/a", style="dim")
    if name != "p99":
        return Text(value.text)
    return Text.assemble(f"{value.text:>{width}}", (f" {value.interval}", "dim"))


def _lines(lines: list[Line]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for line in lines:
        grid.add_row(Text(line.label), Text(line.text))
    return grid
