"""What `loadgen check` shows: what a profile would run, as a table."""

import json

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadgen.runner.expectation import EnginesExpectation, Expectation


def render_expectation(expectation: Expectation) -> RenderableType:
    """One row a stage and a line of totals, or what a search looks for; and lines on what else a request holds and on
    engines, where there are any.

    "?" stands where only the target's speed decides.
    """
    request = (
        f"a request has {_count(expectation.prompt_tokens)} prompt and {_count(expectation.output_tokens)} output"
        " tokens on average"
    )
    planned = (
        (Text(expectation.search), Text(request)) if expectation.search else _stages_and_totals(expectation, request)
    )
    more = (_beside(expectation), _dataset(expectation), _engines(expectation.engines))
    return Group(*planned, *(Text(line) for line in more if line is not None))


def _stages_and_totals(expectation: Expectation, request: str) -> tuple[RenderableType, ...]:
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
        f"(drains add at most {_seconds(expectation.drain_seconds)}); {request}, "
        f"all of them {_count(expectation.total_prompt_tokens)} and {_count(expectation.total_output_tokens)}"
    )
    return table, Text(), totals


def _beside(expectation: Expectation) -> str | None:
    """What each request has beside its prompt."""
    system, images, audio = expectation.system, expectation.images, expectation.audio
    items = []
    if system is not None:
        items.append(f"a system message of {len(system):,} characters")
    if images is not None:
        items.append(f"{_several(images.count, 'image')} of {images.width} x {images.height} pixels")
    if audio is not None:
        items.append(f"{_several(audio.count, 'sound')} of {audio.seconds:g} s at {audio.sample_rate:,} Hz")
    return f"on top of these tokens a request has {' and '.join(items)}" if items else None


def _dataset(expectation: Expectation) -> str | None:
    """The file that requests come from, and how often each of its rows does."""
    dataset = expectation.dataset
    if dataset is None:
        return None
    order = "in their order" if dataset.order == "sequential" else "shuffled"
    rows = f"requests are the {_several(dataset.rows, 'row')} of {dataset.path}, {order}"
    times = None if expectation.requests is None else expectation.requests / dataset.rows
    return rows if times is None or times <= 1 else f"{rows}; each comes about {times:,.3g} times"


def _engines(engines: EnginesExpectation | None) -> str | None:
    if engines is None:
        return None
    args = ", ".join(f"{name} = {json.dumps(value, default=str)}" for name, value in engines.args.items())
    built = f"each worker process builds a vLLM engine of {engines.model}" + (f" with {args}" if args else "")
    return f"{built}; there is one worker" if engines.count == 1 else f"{built}; there are {engines.count:,} workers"


def _several(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count:,} {what}s"


def _count(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _seconds(value: float | None) -> str:
    return "?" if value is None else f"{value:g} s"
