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
    latency_rows,
    point_cells,
    printable,
    slo_line,
    slo_rows,
)

_WIDTH: Final = 100
_MANY_CHECKS: Final = 12
_OUTCOME_STYLE: Final = {"met": "green", "missed": "bold red", "undecided": "yellow"}
_MET_STYLE: Final = {True: "bold green", False: "bold red", None: "bold yellow"}


def render_summary(summary: Summary, console: Console) -> None:
    """Print the whole summary to `console`, at most 100 columns wide.

    Nothing in the summary is taken for markup, whatever a server or a profile put there.
    """
    _print_verdict(summary.verdict, console)
    _print(console, Text(f"{printable(summary.name)}, started {printable(summary.started_at)}", style="dim"))
    several = len(summary.stages) > 1
    if several:
        _print(console, _points(summary.stages))
    checks = summary.verdict.slo.checks if summary.verdict.slo else []
    for number, stage in enumerate(summary.stages, 1):
        place = f"stage {number} of {len(summary.stages)}: " if several else ""
        _print_stage(f"{place}{printable(stage.name)}", stage, checks, console)
    _print_heading("generator", console)
    _print(console, _lines(generator_lines(summary.generator)))


def _print(console: Console, what: Text | Table) -> None:
    console.print(what, width=min(_WIDTH, console.width), highlight=False)


def _print_heading(title: str, console: Console) -> None:
    console.print()
    _print(console, Text(title, style="bold"))


def _print_verdict(verdict: Verdict, console: Console) -> None:
    if verdict.valid:
        _print(console, Text("VALID", style="bold green"))
    else:
        _print(console, Text("INVALID: the generator, not the target, shaped these numbers", style="bold red"))
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
    grid.add_row(Text("  -", style=style), Text(printable(text), style=style))
    return grid


def _promise(row: SloRow) -> str:
    return f"{row.promise} {row.outcome}, measured {row.value}"


def _print_stage(title: str, stage: Stage, checks: list[SloCheck], console: Console) -> None:
    _print_heading(title, console)
    rows = latency_rows(stage.latency_seconds)
    if rows:
        _print(console, _latencies(rows))
    else:
        _print(console, Text("  no latencies: no request completed in the window"))
    lines = stage_lines(stage)
    lines += [Line("slo", _promise(row)) for row in slo_rows([check for check in checks if check.stage == stage.name])]
    _print(console, _lines(lines))


def _latencies(rows: list[LatencyRow]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, collapse_padding=True, show_edge=False)
    table.add_column("", overflow="fold", min_width=8)
    table.add_column("", no_wrap=True)
    table.add_column("mean", justify="right", no_wrap=True)
    for name in PERCENTILES:
        # The value and its interval form a column of their own alignment: see `_with_interval`.
        table.add_column(name, justify="left" if name == "p99" else "right", overflow="fold")
    table.add_column("max", justify="right", no_wrap=True)
    table.add_column("count", justify="right", no_wrap=True)
    width = max((len(row.percentiles["p99"].text) for row in rows if row.percentiles["p99"].known), default=0)
    for row in rows:
        cells = [_with_interval(row, name, width) for name in PERCENTILES]
        table.add_row(Text(row.metric), row.unit, row.mean, *cells, row.max, row.count)
    return table


def _with_interval(row: LatencyRow, name: str, width: int) -> Text:
    value = row.percentiles[name]
    if name != "p99" or not value.known:
        return Text(value.text, style="" if value.known else "dim")
    return Text.assemble(f"{value.text:>{width}}", (f" {value.interval}", "dim"))


def _lines(lines: list[Line]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for line in lines:
        grid.add_row(Text(line.label), Text(line.text))
    return grid


def _points(stages: list[Stage]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, title_justify="left")
    for column in POINT_COLUMNS:
        table.add_column(column, justify="right", overflow="fold")
    for number, stage in enumerate(stages, 1):
        style = "" if stage.stationary.verdict == "stable" else "yellow"
        table.add_row(*point_cells(number, stage), style=style)
    return table
