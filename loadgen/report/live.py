"""What is seen while a run goes on: a panel on a terminal, or a line now and then where there is none.

A picture is drawn and written on a thread, so that a terminal that does not read (Ctrl-S, a stuck pipe) never holds up
the event loop that hands out the load.
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import anyio
from anyio import to_thread
from rich.console import Console, Group, RenderableType
from rich.live import Live as LiveDisplay
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loadgen.measure.outcome import Books
from loadgen.measure.running import Live
from loadgen.report.lines import counts_line
from loadgen.report.tables import ABSENT, brief, printable, significant
from loadgen.units import format_seconds

REFRESH_SECONDS: Final = 0.25
PLAIN_SECONDS: Final = 5.0

_BAR: Final = 40
_LAST_WARNINGS: Final = 3
_PERCENTILES: Final = ("p50", "p90", "p99")


async def show_live(
    read: Callable[[], Live | None],
    console: Console,
    *,
    plain: bool | None = None,
    quiet: bool = False,
    opening: str | None = None,
    period_seconds: float | None = None,
) -> None:
    """Show what `read` returns, again and again, until cancelled.

    `read` is called on the event loop and must be quick; while it returns None only `opening` is shown: what the run
    waits for, where that takes long. On a terminal the panel is drawn in place, four times a second, and is gone when
    this is cancelled. With `plain` (by default: where `console` is no terminal) `opening` is printed at once, then a
    line every five seconds, and each warning once. `quiet` shows nothing.
    Where nobody reads any more (a broken pipe) it returns, for the run goes on without its view.
    """
    if quiet:
        await anyio.sleep_forever()
    if plain is None:
        plain = not console.is_terminal
    try:
        if plain:
            await _print_lines(read, console, opening, period_seconds or PLAIN_SECONDS)
        else:
            await _draw(read, console, opening, period_seconds or REFRESH_SECONDS)
    except (OSError, SystemExit):  # rich makes a SystemExit of a broken pipe
        return


async def _draw(read: Callable[[], Live | None], console: Console, opening: str | None, period_seconds: float) -> None:
    began = anyio.current_time()
    with LiveDisplay(console=console, auto_refresh=False, transient=True) as display:
        while True:
            live = read()
            picture: RenderableType | None = None
            if live is not None:
                picture = render_live(live)
            elif opening is not None:
                picture = Text(f"{printable(opening)}, {_clock(anyio.current_time() - began)}")
            if picture is not None:
                await to_thread.run_sync(partial(display.update, picture, refresh=True))
            await anyio.sleep(period_seconds)


async def _print_lines(
    read: Callable[[], Live | None], console: Console, opening: str | None, period_seconds: float
) -> None:
    if opening is not None:
        await to_thread.run_sync(partial(_write, console, [printable(opening)]))
    told: set[str] = set()
    while True:
        await anyio.sleep(period_seconds)
        live = read()
        if live is None:
            continue
        fresh = [warning for warning in dict.fromkeys(live.warnings) if warning not in told]
        told.update(fresh)
        lines = [plain_line(live), *(f"warning: {brief(warning)}" for warning in fresh)]
        await to_thread.run_sync(partial(_write, console, lines))


def _write(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(Text(line), soft_wrap=True)


# --- one picture ------------------------------------------------------------------------------------------------------


def render_live(live: Live) -> RenderableType:
    """The panel for one moment; nothing in it is taken for markup."""
    parts: list[RenderableType] = [_title(live), _progress(live), _rates(live)]
    if live.percentiles:
        parts.append(_latencies(live))
    parts += [Text(f"warning: {brief(warning)}", style="yellow") for warning in live.warnings[-_LAST_WARNINGS:]]
    return Group(*parts)


def _title(live: Live) -> Text:
    place = {0: f"stage {live.stage_number}: ", 1: ""}.get(live.stages, f"stage {live.stage_number} of {live.stages}: ")
    return Text.assemble((f"{place}{_asked(live)}{printable(live.stage)}", "bold"), f"  {_state(live)}")


def _asked(live: Live) -> str:
    """What a search asked the stage for."""
    return "" if live.purpose is None else f"{printable(live.purpose)}, "


def _state(live: Live) -> str:
    if live.draining:
        return f"draining, {live.in_flight:,} in flight"
    return "starting" if live.elapsed_seconds < 0 else "running"


def _progress(live: Live) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_row(ProgressBar(total=1.0, completed=done(live), width=_BAR, complete_style="green"), Text(_extent(live)))
    return grid


def done(live: Live) -> float:
    """The share of the stage that is done, 0 to 1: the larger of its time and its requests."""
    shares = [0.0]
    if live.duration_seconds:
        shares.append(live.elapsed_seconds / live.duration_seconds)
    if live.requests:
        shares.append(live.books.ended / live.requests)
    return min(1.0, max(shares))


def _extent(live: Live) -> str:
    elapsed = _clock(live.elapsed_seconds)
    parts = [elapsed if live.duration_seconds is None else f"{elapsed} of {_clock(live.duration_seconds)}"]
    if live.requests is not None:
        parts.append(f"{live.books.ended:,} of {live.requests:,} requests")
    return ", ".join(parts)


def _clock(seconds: float) -> str:
    whole = max(0, int(seconds))
    return time.strftime("%H:%M:%S" if whole >= 3600 else "%M:%S", time.gmtime(whole % 86400))


def _rates(live: Live) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    grid.add_row("requests/s", Text(_request_rates(live)))
    grid.add_row("in flight", Text(_in_flight(live)))
    grid.add_row("ended", Text(_ended(live.books)))
    if live.books.failed:
        grid.add_row("failed", Text(counts_line(live.books.failed), style="red"))
    grid.add_row("output", Text(f"{significant(live.output_token_rate)} tokens/s"))
    late = ABSENT if live.lateness_p99 is None else f"p99 {format_seconds(live.lateness_p99)}"
    grid.add_row("lateness", Text(late))
    return grid


def _request_rates(live: Live) -> str:
    offered = "" if live.offered_rate is None else f"{live.offered_rate:,.6g} offered, "
    return f"{offered}{significant(live.achieved_rate)} sent, {significant(live.completed_rate)} completed"


def _in_flight(live: Live) -> str:
    return f"{live.in_flight:,}" + ("" if live.concurrency is None else f" of {live.concurrency:,} slots")


def _ended(books: Books) -> str:
    others = {"cancelled": books.cancelled, "dropped": books.dropped, "lost": books.lost}
    parts = [f"{books.completed:,} completed", f"{books.failures:,} failed"]
    return ", ".join(parts + [f"{count:,} {name}" for name, count in others.items() if count])


def _latencies(live: Live) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for _ in _PERCENTILES:
        table.add_column(justify="right", min_width=8)
    table.add_row("", *_PERCENTILES, style="dim")
    for metric, percentiles in live.percentiles.items():
        cells = (format_seconds(percentiles[name]) if name in percentiles else ABSENT for name in _PERCENTILES)
        table.add_row(Text(metric, style="dim"), *cells)
    return table


def plain_line(live: Live) -> str:
    """One moment in one line, for a log."""
    place = {0: f"{live.stage_number} ", 1: ""}.get(live.stages, f"{live.stage_number}/{live.stages} ")
    parts = [
        f"{place}{_asked(live)}{printable(live.stage)}: {_extent(live)}",
        f"{_request_rates(live)} /s",
        _ended(live.books),
        f"{_in_flight(live)} in flight",
        f"{significant(live.output_token_rate)} tok/s",
    ]
    for metric in ("ttft", "itl", "response"):
        if "p99" in (percentiles := live.percentiles.get(metric, {})):
            parts.append(f"{metric} p99 {format_seconds(percentiles['p99'])}")
    if live.draining:
        parts.append("draining")
    return " | ".join(parts)
