"""The charts over several stages: latency, throughput, tokens and concurrency against the load, or against a swept key.

A grid has a line for each combination of the keys that are not along the axis.
"""

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, Final

from loadgen.report.charts.axis import Axis, Curve, axis_of
from loadgen.report.charts.marks import Limit, Mark, limits_of, marks_of, shapes_of
from loadgen.report.charts.stage import COLOURS, NEUTRAL, Plot, Trace, figure_of, seconds_axis, title, with_bars
from loadgen.report.tables import is_sufficient, offered, printable
from loadgen.summary.summary import Stage, Summary
from loadgen.units import format_seconds

_WANTED: Final = (
    ("ttft", "p50"),
    ("ttft", "p99"),
    ("itl", "p99"),
    ("tpot", "p99"),
    ("response", "p50"),
    ("response", "p99"),
)
_PALETTE: Final = ("#2f7ed8", "#d9662b", "#14966c", "#8d6bd1", "#b8862c", "#c2539a", "#5aa5d6", "#7a8f3c", "#d63b47")
_LOG_FROM: Final = 30.0
"""The axis is logarithmic where its largest place is this many times its smallest."""


def sweep_plots(summary: Summary) -> list[Plot]:
    """The charts over the stages of a run; none for fewer than two stages."""
    if len(summary.stages) < 2:
        return []
    axis = axis_of(summary.stages, summary.search.objective if summary.search is not None else None)
    if not axis.curves:
        return []
    marks = marks_of(summary, axis)
    # The knee is one of a latency curve; elsewhere it would say nothing.
    plain = [mark for mark in marks if mark.kind != "knee"]

    def levels(name: str, value: Callable[[Stage], float], colour: str) -> list[Trace]:
        return [trace for each in _inked(axis, colour) for trace in _level(name, value, *each)]

    return [
        *_latency_plots(axis, limits_of(summary), marks),
        _plot(axis, plain, "throughput", "Completed", "What was asked and what came.", _rates(axis)),
        _plot(
            axis,
            plain,
            "tokens",
            "Output tokens",
            "Tokens per second in the window.",
            levels("output tokens/s", lambda stage: stage.throughput.output_tokens, COLOURS["service"]),
        ),
        _plot(
            axis,
            plain,
            "concurrency",
            "In flight",
            "Mean number of requests in flight.",
            levels("in flight", lambda stage: stage.concurrency.mean, COLOURS["tpot"]),
        ),
    ]


def _plot(
    axis: Axis,
    marks: Sequence[Mark],
    name: str,
    caption: str,
    about: str,
    traces: list[Trace],
    yaxis: dict[str, Any] | None = None,
) -> Plot:
    hollow = " Hollow points were not stationary." if any(_is_unstable(stage) for stage in axis.stages) else ""
    is_log = min(axis.x) > 0 and max(axis.x) >= _LOG_FROM * min(axis.x)
    scale = {"type": "log", "dtick": "D2"} if is_log else {"rangemode": "tozero"}
    xaxis = {"title": title(escape(axis.title)), **scale}
    shapes, notes = shapes_of(marks, is_log=is_log, left=min(axis.x) if is_log else 0.0, right=max(axis.x))
    figure = figure_of(
        traces,
        xaxis,
        {"rangemode": "tozero"} if yaxis is None else yaxis,
        hovermode="x unified",
        shapes=shapes,
        annotations=notes,
    )
    told = "".join(f" {mark.about}" for mark in marks)
    return Plot(f"sweep-{name}", f"{caption} against {axis.word}", f"{about}{hollow}{told}{axis.note}", figure)


def _inked(axis: Axis, colour: str) -> list[tuple[Curve, str]]:
    """Each curve with its colour: that of the quantity where there is one curve, else one of its own."""
    if len(axis.curves) == 1:
        return [(axis.curves[0], colour)]
    return [(curve, _PALETTE[place % len(_PALETTE)]) for place, curve in enumerate(axis.curves)]


# --- latency ----------------------------------------------------------------------------------------------------------


def _latency_plots(axis: Axis, limits: Sequence[Limit], marks: Sequence[Mark]) -> list[Plot]:
    """One chart of all latencies, or one for each latency where there are several curves."""
    several = len(axis.curves) > 1
    wanted = [each for each in _WANTED if each[1] != "p50"] if several else _WANTED
    known = [(metric, name) for metric, name in wanted if _is_known(axis, metric, name)]
    if ("itl", "p99") in known:
        known = [each for each in known if each != ("tpot", "p99")]
    metrics = list(dict.fromkeys(metric for metric, _ in known))
    groups = [[metric] for metric in metrics] if several else [metrics]
    plots = []
    for group in groups if metrics else []:
        traces = [
            trace
            for metric, name in known
            if metric in group
            for curve, colour in _inked(axis, COLOURS[metric])
            for trace in _latency(metric, name, curve, colour)
        ]
        traces += [_limit(limit, axis) for limit in limits if limit.metric in group]
        name, caption = (f"latency-{group[0]}", f"Latency, {group[0]},") if several else ("latency", "Latency")
        about = "Bars are 95 % intervals, triangles are open above, gaps had too few samples."
        plots.append(_plot(axis, marks, name, caption, about, traces, seconds_axis(traces)))
    return plots


def _is_known(axis: Axis, metric: str, name: str) -> bool:
    latencies = [stage.latency_seconds.named().get(metric) for stage in axis.stages]
    return any(latency is not None and is_sufficient(latency, name) for latency in latencies)


def _latency(metric: str, name: str, curve: Curve, colour: str) -> list[Trace]:
    latencies = [stage.latency_seconds.named().get(metric) for stage in curve.stages]
    trace = with_bars(latencies, [name] * len(latencies), colour)
    trace["marker"]["symbol"] = _hollowed(trace["marker"]["symbol"], curve.stages)
    line = {"color": colour, "dash": "dot" if name == "p50" else "solid"}
    # The median of the response time can be had by a click.
    hidden = {"visible": "legendonly"} if (metric, name) == ("response", "p50") else {}
    return _joined(_name(f"{metric} {name}", curve), curve, {**trace, **hidden}, line)


def _limit(limit: Limit, axis: Axis) -> Trace:
    return {
        "name": escape(f"SLO {limit.metric} {limit.percentile} ≤ {format_seconds(limit.seconds)}"),
        "mode": "lines",
        "x": [min(axis.x), max(axis.x)],
        "y": [limit.seconds, limit.seconds],
        "line": {"color": COLOURS.get(limit.metric, NEUTRAL), "dash": "dash", "width": 1.4},
        "hoverinfo": "skip",
    }


# --- rates and levels -------------------------------------------------------------------------------------------------


def _rates(axis: Axis) -> list[Trace]:
    traces: list[Trace] = []
    if axis.is_rate:
        ends = sorted(set(axis.x))
        line = {"color": NEUTRAL, "dash": "dot", "width": 1.2}
        traces.append({"name": "offered", "mode": "lines", "x": ends, "y": ends, "line": line})
    for curve, colour in _inked(axis, COLOURS["itl"]):
        traces += _level("completed/s", lambda stage: stage.throughput.requests, curve, colour)
    for curve, colour in _inked(axis, COLOURS["ttft"]):
        if any(stage.throughput.goodput is not None for stage in curve.stages):
            dash = "dash" if curve.label else "solid"
            traces += _level("goodput/s", lambda stage: stage.throughput.goodput, curve, colour, dash)
    return traces


def _level(
    name: str, value: Callable[[Stage], float | None], curve: Curve, colour: str, dash: str = "solid"
) -> list[Trace]:
    trace: Trace = {
        "y": [value(stage) for stage in curve.stages],
        "marker": {"color": colour, "size": 8, "symbol": _hollowed(["circle"] * len(curve.stages), curve.stages)},
        "customdata": [escape(f"{printable(stage.name)}, {offered(stage)}") for stage in curve.stages],
        "hovertemplate": "%{fullData.name}: %{y:.4~g} (%{customdata})<extra></extra>",
    }
    return _joined(_name(name, curve), curve, trace, {"color": colour, "width": 2, "dash": dash})


def _name(name: str, curve: Curve) -> str:
    return escape(f"{name}, {curve.label}" if curve.label else name)


def _joined(name: str, curve: Curve, trace: Trace, line: dict[str, Any]) -> list[Trace]:
    """The points with the line that joins them; of those that share a place, as repeats do, through their mean."""
    shared = {"name": name, "legendgroup": name}
    places = sorted(set(curve.x))
    if len(places) == len(curve.x):
        return [{**shared, "mode": "lines+markers", "x": curve.x, "line": line, **trace}]
    values: dict[float, list[float]] = {place: [] for place in places}
    for place, value in zip(curve.x, trace["y"], strict=True):
        if value is not None:
            values[place].append(value)
    means = [math.fsum(at) / len(at) if at else None for at in values.values()]
    through = {"mode": "lines", "x": places, "y": means, "line": line, "showlegend": False, "hoverinfo": "skip"}
    if "visible" in trace:
        through["visible"] = trace["visible"]
    return [{**shared, "mode": "markers", "x": curve.x, **trace}, {**shared, **through}]


def _is_unstable(stage: Stage) -> bool:
    return stage.stationary.verdict == "unstable" or stage.stationary.growing


def _hollowed(symbols: list[str], stages: Sequence[Stage]) -> list[str]:
    return [f"{symbol}-open" if _is_unstable(stage) else symbol for symbol, stage in zip(symbols, stages, strict=True)]
