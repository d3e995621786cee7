"""The summary on a terminal: the verdict first, then the numbers. Fits 100 columns, and reads without colour."""

from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadgen.metrics.summary import PERCENTILES, SloCheck, Stage, Summary, Verdict
from loadgen.report.lines import Line, generator_lines, stage_lines
from loadgen.report.tables import (
    POINT_COLUMNS,
    LatencyRow,
    SloRow,
    brief,
    latency_rows,
    point_cells,
    printable,
    slo_line,
    slo_rows,
)

_WIDTH: Final = 100
_FEW_PERCENTILES: Final = ("p50", "p99", "p99.9")
_FEW_POINT_COLUMNS: Final = tuple(c for c in POINT_COLUMNS if c not in ("goodput", "ttft p50", "itl p50"))
_MANY_CHECKS: Final = 12
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
    _print_verdict(summary.verdict, console)
    _print(console, Text(f"{printable(summary.name)}, started {printable(summary.started_at)}", style="dim"))
    several = len(summary.stages) > 1
    if several:
        console.print()
        _print(console, _points(summary.stages, POINT_COLUMNS if _roomy(console) else _FEW_POINT_COLUMNS))
    checks = summary.verdict.slo.checks if summary.verdict.slo else []
    for number, stage in enumerate(summary.stages, 1):
        place = f"stage {number} of {len(summary.stages)}: " if several else ""
        _print_stage(f"{place}{printable(stage.name)}", stage, checks, console)
    _print_heading("generator", console)
    _print(console, _lines(generator_lines(summary.generator)))


def _roomy(console: Console) -> bool:
    return console.width >= _WIDTH


def _print(console: Console, what: Text | Table) -> None:
    console.print(what, highlight=False)


def _print_heading(title: str, console: Console) -> None:
    console.print()
    _print(console, Text(title, style="bold"))


def _print_verdict(verdict: Verdict, console: Console) -> None:
    if verdict.valid:
        _print(console, Text("VALID", style="bold green"))
    else:
        _print(console, Text("INVALID: these numbers are the generator's, not the target's", style="bold red"))
    for reason in verdict.reasons:
        _print(console, _item(reason, "red"))
    if verdict.slo:
        _print(console, Text(slo_line(verdict.slo), style=_MET_STYLE[verdict.slo.met]))
        unmet = [row for row in slo_rows(verdict.slo.checks) if row.outcome != "met"]
        for row in unmet[:_MANY_CHECKS]:
            _print(console, _item(f"{row.stage}: {_promise(row)}", _OUTCOME_STYLE.get(row.outcome, "")))
        if len(unmet) > _MANY_CHECKS:
            _print(console, _item(f"and {len(unmet) - _MANY_CHECKS:,} more", ""))
    for warning in verdict.warnings:
        _print(console, _item(f"warning: {warning}", "yellow"))


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
    promises = [_promise(row) for row in slo_rows([check for check in checks if check.stage == stage.name])]
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


def _points(stages: list[Stage], columns: tuple[str, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    for number, stage in enumerate(stages, 1):
        cells = dict(zip(POINT_COLUMNS, point_cells(number, stage), strict=True))
        style = "" if stage.stationary.verdict == "stable" else "yellow"
        table.add_row(*(Text(cells[column]) for column in columns), style=style)
    return table
