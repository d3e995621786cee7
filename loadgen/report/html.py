"""The report as one HTML page that works offline: the chart library, the styles and the data are all inside it.

Whatever a server or a profile said is escaped by the template, and by `_json_in_html` where it stands in data. The
page's own policy lets no script run but the two that were put there, and lets nothing be fetched.
"""

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Any, Final

import msgspec
import tomli_w
from jinja2 import PackageLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from markupsafe import Markup

from loadgen.profile.slo import PERCENTILES
from loadgen.report.charts.stage import Plot, stage_plots
from loadgen.report.charts.sweep import sweep_plots
from loadgen.report.lines import Line, generator_lines, stage_lines
from loadgen.report.points import point_columns, promised_percentiles
from loadgen.report.repeats import repeat_rows
from loadgen.report.search import answer_of
from loadgen.report.summary_json import as_plain
from loadgen.report.tables import (
    SIMULATED,
    LatencyRow,
    Shown,
    SloRow,
    brief,
    checks_by_stage,
    error_rate,
    interval,
    latency_rows,
    offered,
    percent,
    printable,
    shown,
    significant,
    slo_line,
    slo_rows,
)
from loadgen.summary.summary import SloCheck, SloVerdict, Stage, Summary

_GLOSSARY: Final = (
    ("ttft", "time to the first token, from the intended start of the request"),
    ("service_ttft", "the same from the send: what the target took"),
    ("ttft_content", "time to the first visible content, where reasoning or a tool call comes before it"),
    ("itl", "gap between two chunks that bear tokens; each gap is one sample"),
    ("tpot", "time from the first token to the last over the tokens after the first; one sample a request"),
    ("response", "end minus intended start: what a user would have felt"),
    ("service", "end minus send"),
    ("queued", "wait for a free slot under max_inflight, from the intended start"),
    ("lateness", "the generator's own error: from the free slot to the send"),
    ("connect", "time to open a connection, where one was opened"),
    ("goodput", "completed requests per second that met every limit of the SLO by themselves"),
    ("attainment", "share of the requests that met every limit of the SLO by themselves"),
    ("[low, high]", "95 % confidence interval of the percentile; [low, ?] where the run is too short to close it"),
    ("n/a (k samples)", "fewer than 10 of the k samples lie beyond the percentile: it is not known"),
    ("across repeats", "Student's 95 % interval of the mean over the repeats of a condition"),
    ("within each", "from the lowest to the highest end of the intervals that the repeats have by themselves"),
    ("≥", "a lower bound: among the samples are requests that had not ended"),
)


class Tile(msgspec.Struct, frozen=True):
    """A key number."""

    label: str
    value: Shown
    note: str = ""


class StageView(msgspec.Struct, frozen=True):
    """One stage as the template shows it."""

    id: str
    title: str
    stationary: str
    tiles: list[Tile]
    latencies: list[LatencyRow]
    lines: list[Line]
    promises: list[SloRow]
    plots: list[Plot]


class SloView(msgspec.Struct, frozen=True):
    """The SLO of the run in a line, and the promises shown under it."""

    line: str
    outcome: str
    promises: list[SloRow]


def to_html(summary: Summary) -> bytes:
    """The whole report as one self-contained page."""
    sweep = sweep_plots(summary)
    several = len(summary.stages) > 1
    points = point_columns(summary.stages, summary.search, promised_percentiles(summary))
    checks = checks_by_stage(summary.stages, summary.verdict.slo.checks if summary.verdict.slo else [])
    stages = [
        _stage_view(number, stage, own, several=several)
        for number, (stage, own) in enumerate(zip(summary.stages, checks, strict=True), 1)
    ]
    figures = {plot.id: plot.figure for plot in [*sweep, *(plot for stage in stages for plot in stage.plots)]}
    library, script = _plotly(), _asset("report.js")
    page = _environment().get_template("report.html.j2")
    text = page.render(
        summary=summary,
        verdict=summary.verdict,
        slo=_slo(summary.verdict.slo, several=several, sought=summary.search is not None),
        simulated=SIMULATED if summary.simulated else "",
        answer=answer_of(summary),
        points=points if several or summary.search is not None else [],
        repeats=repeat_rows(summary.repeats, summary.stages),
        percentiles=list(PERCENTILES),
        sweep=sweep,
        stages=stages,
        generator=generator_lines(summary.generator),
        environment=_as_json(summary.environment),
        profile=_as_toml(summary.profile),
        glossary=_GLOSSARY,
        style=Markup(_asset("report.css")),  # noqa: S704 our own file
        figures=_json_in_html(figures),
        library=Markup(library),  # noqa: S704 the chart library's file
        script=Markup(script),  # noqa: S704 our own file
        script_hashes=" ".join(f"'{_source_hash(source)}'" for source in (library, script)),
    )
    return text.encode()


@cache
def _environment() -> SandboxedEnvironment:
    environment = SandboxedEnvironment(
        loader=PackageLoader("loadgen.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["printable"] = printable
    environment.filters["brief"] = brief
    return environment


def _stage_view(number: int, stage: Stage, checks: list[SloCheck], *, several: bool) -> StageView:
    return StageView(
        id=f"stage-{number}",
        title=f"{f'Stage {number}: ' if several else ''}{printable(stage.name)}",
        stationary=stage.stationary.verdict,
        tiles=_tiles(stage),
        latencies=latency_rows(stage.latency_seconds),
        lines=stage_lines(stage),
        promises=slo_rows(checks),
        plots=stage_plots(f"stage-{number}", stage),
    )


def _slo(slo: SloVerdict | None, *, several: bool, sought: bool) -> SloView | None:
    """The promises of one stage, or those not met of several: each stage shows its own.

    None of a search (`sought`), which looks for loads at which they are missed; and no SLO where nothing was checked.
    """
    if slo is None or not slo.checks:
        return None
    outcome = {True: "met", False: "missed", None: "undecided"}[slo.met]
    rows = [row for row in slo_rows(slo.checks) if not sought and (not several or row.outcome != "met")]
    return SloView(slo_line(slo), outcome, rows)


def _tiles(stage: Stage) -> list[Tile]:
    """The key numbers of a stage; a latency that it does not have gets no tile."""
    throughput, latencies = stage.throughput, stage.latency_seconds.named()
    errors = error_rate(stage.window.books)
    tiles = [Tile("completed", Shown(f"{significant(throughput.requests)}/s"), f"offered {offered(stage)}")]
    if throughput.goodput is not None:
        note = interval(throughput.goodput_ci, significant) or "met every limit"
        tiles.append(Tile("goodput", Shown(f"{significant(throughput.goodput)}/s"), note))
    tiles.append(Tile("output tokens", Shown(f"{significant(throughput.output_tokens)}/s")))
    for metric, percentile in (
        ("ttft", "p50"),
        ("ttft", "p99"),
        ("itl", "p99"),
        ("response", "p50"),
        ("response", "p99"),
    ):
        if metric in latencies:
            value = shown(latencies[metric], percentile)
            tiles.append(Tile(f"{metric} {percentile}", value, value.interval))
    if errors is not None:
        tiles.append(Tile("errors", Shown(percent(errors)), f"of {stage.window.books.intended:,} requests"))
    mean, most = significant(stage.concurrency.mean), f"at most {stage.concurrency.max:,}"
    return [*tiles, Tile("in flight", Shown(mean), most)]


# --- what is embedded -------------------------------------------------------------------------------------------------


def _asset(name: str) -> str:
    return resources.files("loadgen.report").joinpath("templates", name).read_text("utf-8")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _source_hash(script: str) -> str:
    """The script as a content security policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _json_in_html(value: Any) -> Markup:
    """JSON that can stand in a script element: no text in it can end the element or begin a comment."""
    text = msgspec.json.encode(value, enc_hook=as_plain).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 escaped above


def _as_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=as_plain), indent=2).decode()


def _as_toml(value: dict[str, Any]) -> str:
    """The profile in its own language; as JSON where it holds what TOML has no word for."""
    try:
        return tomli_w.dumps(value)
    except (TypeError, ValueError):
        return _as_json(value)
