"""What `loadgen check` shows: what a profile would run, as a table."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadgen.expectation import Expectation


def render_expectation(expectation: Expectation) -> RenderableType:
    """One row a stage, and a line of totals. "?" stands where only the target's speed decides."""
    table = Table(box=None, pad_edge=False)
    for heading in ("stage", "kind"):
        table.add_column(heading)
    for heading in ("requests", "duration", "drain at most"):
        table.add_column(heading, justify="right")
    for stage in expectation.stages:
        table.add_row(
            Text(stage.name), stage.kind, _count(stage.requests), _seconds(stage.seconds), _seconds(stage.drain_seconds)
        )
    totals = Text(
        f"in all {_count(expectation.requests)} requests in {_seconds(expectation.seconds)} "
        f"(drains add at most {_seconds(expectation.drain_seconds)}); a request has "
        f"{_count(expectation.prompt_tokens)} prompt and {_count(expectation.output_tokens)} output tokens on average, "
        f"all of them {_count(expectation.total_prompt_tokens)} and {_count(expectation.total_output_tokens)}"
    )
    return Group(table, Text(), totals)


def _count(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _seconds(value: float | None) -> str:
    return "?" if value is None else f"{value:g} s"
