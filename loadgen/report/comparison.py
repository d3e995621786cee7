"""Stages side by side on a terminal: their points, the promises that each kept, and what repeats have in common."""

from collections.abc import Sequence
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from loadgen.report.points import BAD, DOUBT, GOOD, Cell, Column
from loadgen.report.repeats import RepeatRow
from loadgen.report.tables import ABSENT, SloRow, promise, slo_rows
from loadgen.summary.summary import SloCheck

_STYLE: Final = {GOOD: "green", BAD: "bold red", DOUBT: "yellow"}
_OUTCOME_STYLE: Final = {"met": "green", "missed": "bold red", "undecided": "yellow"}
_IN_REPORT: Final = "why"
"""The column that only the HTML report has."""
_LONG: Final = "response p99"
"""The column that shows its intervals, where there is room for them."""
_SHED: Final = (
    "response p50",
    "ttft p50",
    "purpose",
    _LONG,
    "output tokens/s",
    "goodput /s",
    "attainment",
    "itl p99",
    "tpot p99",
    "errors",
)
"""What a terminal goes without that is too narrow, the first first (of `_LONG` the intervals); the report has it."""
_GAP: Final = 2
"""Between columns: their padding, and the line that the table does not draw."""
_PROMISES_ACROSS: Final = 3


def points_table(columns: Sequence[Column], width: int) -> Table:
    """A row a stage, in as many columns as `width` characters have room for."""
    shown = {
        column.heading: _texts(column, with_interval=column.heading == _LONG)
        for column in columns
        if column.heading != _IN_REPORT
    }
    by_heading = {column.heading: column for column in columns}
    # First what no stage knows, such as a percentile that all stages are too short for.
    unknown = [name for name in _SHED if name in shown and not any(cell.value.known for cell in by_heading[name].cells)]
    for name in (*unknown, *_SHED):
        if _table_width(shown) <= width:
            break
        if name == _LONG and name in shown and name not in unknown:
            shown[name] = _texts(by_heading[name], with_interval=False)
        else:
            shown.pop(name, None)
    table = _table()
    for heading in shown:
        table.add_column(Text(heading.replace(" ", "\n")), justify="right", overflow="fold")
    for cells in zip(*shown.values(), strict=True):
        table.add_row(*cells)
    return table


def _table_width(shown: dict[str, list[Text]]) -> int:
    return sum(_width(heading, cells) + _GAP for heading, cells in shown.items()) - _GAP


def _width(heading: str, cells: Sequence[Text]) -> int:
    return max(map(len, (*heading.split(" "), *(cell.plain for cell in cells))))


def _texts(column: Column, *, with_interval: bool) -> list[Text]:
    """The cells; intervals are brought to one width, so that the values before them stand aligned to the right."""
    width = max((len(cell.value.interval) for cell in column.cells), default=0) if with_interval else 0
    return [
        Text.assemble((cell.value.text, _style(cell)), (f" {cell.value.interval:<{width}}" if width else "", "dim"))
        for cell in column.cells
    ]


def _style(cell: Cell) -> str:
    return _STYLE.get(cell.tone, "" if cell.value.known else "dim")


def checks_tables(checks: Sequence[Sequence[SloCheck]]) -> list[Table]:
    """The promises of each stage, a row a stage and a column a promise; three promises to a table."""
    promises = list(dict.fromkeys(promise(check) for own in checks for check in own))
    rows = [{row.promise: row for row in slo_rows(list(own))} for own in checks]
    tables = []
    for first in range(0, len(promises), _PROMISES_ACROSS):
        across = promises[first : first + _PROMISES_ACROSS]
        table = _table()
        table.add_column("#", justify="right")
        for heading in across:
            table.add_column(Text(heading), overflow="fold")
        for number, own in enumerate(rows, 1):
            table.add_row(str(number), *(_kept(own.get(heading)) for heading in across))
        tables.append(table)
    return tables


def _kept(row: SloRow | None) -> Text:
    if row is None:
        return Text(ABSENT, style="dim")
    outcome = (row.outcome, _OUTCOME_STYLE.get(row.outcome, ""))
    return Text.assemble(outcome, f" {row.value.text}", (f" {row.value.interval}".rstrip(), "dim"))


def repeats_table(rows: Sequence[RepeatRow]) -> Table:
    """A row a quantity of a condition, whose name stands at its first."""
    table = _table()
    for heading in ("condition", "repeats", "quantity", "mean", "across repeats", "within each"):
        table.add_column(heading, justify="right" if heading in ("repeats", "mean") else "left", overflow="fold")
    before = None
    for row in rows:
        first = row.condition != before
        before = row.condition
        label = (row.condition, str(row.count)) if first else ("", "")
        texts = (*label, row.quantity, row.across.text, row.across.interval, row.within)
        table.add_row(*map(Text, texts))
    return table


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
