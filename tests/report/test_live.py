import io
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from rich.console import Console

from loadgen.measure.running import Live
from loadgen.report.live import done, plain_line, render_live, show_live

pytestmark = pytest.mark.anyio


def drawn(live: Live, width: int = 100) -> str:
    """The panel as text."""
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=False).print(render_live(live))
    return file.getvalue()


def row(text: str, label: str) -> str:
    """The first line that begins with `label`, its gaps closed."""
    return " ".join(next(line for line in text.splitlines() if line.startswith(label)).split())


async def shown(read: Callable[[], Live | None], seconds: float, *, terminal: bool = False, **options: Any) -> str:
    """What `show_live` wrote until it was cancelled after `seconds`."""
    file = io.StringIO()
    with anyio.move_on_after(seconds):
        await show_live(read, Console(file=file, width=100, force_terminal=terminal), **options)
    return file.getvalue()


# --- one picture ------------------------------------------------------------------------------------------------------


def test_the_panel_shows_rates_in_flight_and_latencies(build: Any) -> None:
    text = drawn(build.live())
    assert "20 offered, 19.9 sent, 19.7 completed" in text
    assert "590 completed, 3 failed" in text
    assert "3 http_429" in text
    assert "2,521 tokens/s" in text
    assert row(text, "ttft") == "ttft 50 ms 75 ms 100 ms"


def test_a_latency_that_is_not_known_yet_is_absent(build: Any) -> None:
    text = drawn(build.live(percentiles={"response": {"p50": 1.0}}, lateness_p99=None))
    assert "ttft" not in text
    assert row(text, "response") == "response 1.00 s - -"


def test_a_closed_loop_has_slots_and_no_offered_rate(build: Any) -> None:
    text = drawn(build.live(offered_rate=None, concurrency=64))
    assert "12 of 64 slots" in text
    assert "offered" not in text


def test_several_stages_are_counted(build: Any) -> None:
    assert "stage 2 of 5: poisson 20/s" in drawn(build.live(stage_number=2, stages=5))


def test_a_search_has_stages_without_an_end_and_says_what_each_is_for(build: Any) -> None:
    live = build.live(stage_number=3, stages=0, purpose="confirm stable")
    assert drawn(live).startswith("stage 3: confirm stable, poisson 20/s  running")
    assert plain_line(live).startswith("3 confirm stable, poisson 20/s: 00:30 of 01:00")


def test_a_drain_is_told(build: Any) -> None:
    assert "draining, 12 in flight" in drawn(build.live(draining=True))


def test_the_last_warnings_are_shown(build: Any) -> None:
    text = drawn(build.live(warnings=["first", "second", "third", "[red]fourth"]))
    assert "first" not in text
    assert "warning: [red]fourth" in text


@pytest.mark.parametrize(
    ("fields", "share"),
    [
        ({}, 0.5),  # 30 of 60 s
        ({"elapsed_seconds": -0.2}, 0.0),
        ({"elapsed_seconds": 75.0}, 1.0),
        ({"duration_seconds": None, "requests": 1186}, 0.5),  # 593 have ended
        ({"duration_seconds": None}, 0.0),
        ({"duration_seconds": 0.0, "requests": 0}, 0.0),
    ],
)
def test_progress_goes_by_time_or_by_requests(build: Any, fields: dict[str, Any], share: float) -> None:
    assert done(build.live(**fields)) == pytest.approx(share)


def test_the_extent_is_told_in_time_and_requests(build: Any) -> None:
    assert "00:30 of 01:00, 593 of 1,200 requests" in drawn(build.live(requests=1200))


def test_a_plain_line_is_one_line_of_everything(build: Any) -> None:
    assert plain_line(build.live(stage="a\nb", stage_number=2, stages=3)) == (
        "2/3 a b: 00:30 of 01:00 | 20 offered, 19.9 sent, 19.7 completed /s | 590 completed, 3 failed | "
        "12 in flight | 2,521 tok/s | ttft p99 100 ms | itl p99 30 ms | response p99 3.20 s"
    )


# --- again and again --------------------------------------------------------------------------------------------------


async def test_where_there_is_no_terminal_lines_are_printed_whole(build: Any) -> None:
    text = await shown(build.live, 0.3, period_seconds=0.02)
    assert set(text.splitlines()) == {plain_line(build.live())}  # longer than 100 columns, and not folded


async def test_each_warning_is_printed_once_in_plain_lines(build: Any) -> None:
    text = await shown(lambda: build.live(warnings=["[b]late", "[b]late"]), 0.3, period_seconds=0.02)
    assert text.count("warning: [b]late") == 1
    assert text.count(" in flight") > 1


async def test_nothing_is_printed_before_there_is_something(build: Any) -> None:
    assert await shown(lambda: None, 0.1, period_seconds=0.02) == ""


async def test_what_is_waited_for_is_printed_once_and_at_once(build: Any) -> None:
    text = await shown(lambda: None, 0.2, opening="starting\n[b]2 engines", period_seconds=0.02)
    assert text == "starting [b]2 engines\n"


async def test_what_is_waited_for_stands_on_a_terminal_with_the_time_until_the_load_begins(build: Any) -> None:
    began = time.monotonic()

    def read() -> Live | None:
        return build.live() if time.monotonic() - began > 0.2 else None

    text = await shown(read, 0.5, terminal=True, opening="starting [b]2 engines", period_seconds=0.02)
    assert "starting [b]2 engines, 00:00" in text
    assert text.rindex("starting [b]2 engines") < text.index("poisson 20/s")


async def test_quiet_does_not_say_what_is_waited_for(build: Any) -> None:
    assert await shown(lambda: None, 0.05, quiet=True, opening="starting") == ""


async def test_quiet_shows_nothing_until_cancelled(build: Any) -> None:
    began = time.monotonic()
    assert await shown(build.live, 0.1, quiet=True) == ""
    assert time.monotonic() - began >= 0.1


async def test_a_terminal_is_left_clean(build: Any) -> None:
    text = await shown(build.live, 0.3, terminal=True, period_seconds=0.02)
    assert "poisson 20/s" in text
    assert text.rindex("\x1b[?25h") > text.rindex("poisson 20/s")  # the cursor is visible again
    # After the last picture every one of its lines is erased: 11 lines, the cursor going up before each but one.
    height = len(drawn(build.live()).splitlines())
    assert text[text.rindex("poisson 20/s") :].count("\x1b[1A\x1b[2K") >= height - 1


async def test_plain_lines_can_be_had_on_a_terminal(build: Any) -> None:
    text = await shown(build.live, 0.2, terminal=True, plain=True, period_seconds=0.02)
    assert "\x1b" not in text


async def test_a_terminal_that_does_not_read_holds_up_nothing_else(build: Any) -> None:
    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            time.sleep(0.15)
            return len(text)

    longest = 0.0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(show_live, build.live, Console(file=Stuck(), width=100, force_terminal=False))
        for _ in range(20):
            began = time.monotonic()
            await anyio.sleep(0.01)
            longest = max(longest, time.monotonic() - began)
        tasks.cancel_scope.cancel()
    assert longest < 0.15


async def test_a_reader_that_went_away_ends_the_view_and_not_the_run(build: Any) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("gone")

    with anyio.fail_after(5):
        await show_live(build.live, Console(file=Broken(), force_terminal=False), period_seconds=0.01)
