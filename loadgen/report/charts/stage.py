"""The charts of one stage as plotly figures, in plain dicts, and the pieces that `sweep` shares; the page's script
adds the colours of the page."""

import math
from html import escape
from typing import Any, Final

import msgspec

from loadgen.profile.slo import PERCENTILES
from loadgen.report.tables import is_sufficient, shown
from loadgen.summary.summary import Latency, Series, Stage

Trace = dict[str, Any]

COLOURS: Final = {
    "ttft": "#2f7ed8",
    "ttft_content": "#6b8fb5",
    "service_ttft": "#5aa5d6",
    "itl": "#14966c",
    "tpot": "#8d6bd1",
    "response": "#d9662b",
    "service": "#b8862c",
    "queued": "#c2539a",
    "lateness": "#7f8894",
    "connect": "#7a8f3c",
    "failed": "#d63b47",
}
NEUTRAL: Final = "#7f8894"
_CURVES_SHOWN: Final = ("ttft", "itl", "tpot", "response")
_DECADES: Final = ((1, "0"), (2, "50"), (10, "90"), (100, "99"), (1000, "99.9"), (1e4, "99.99"), (1e5, "99.999"))
_BEYOND: Final = 10
"""Samples that must lie beyond a percentile for it to be known."""


class Plot(msgspec.Struct, frozen=True):
    """One chart: its caption, what it shows in a sentence, and the figure that plotly draws."""

    id: str
    caption: str
    about: str
    figure: dict[str, Any]
    wide: bool = False


def stage_plots(prefix: str, stage: Stage) -> list[Plot]:
    """The charts of one stage; what it has no data for is left out. `prefix` makes the ids unique."""
    plots = []
    if stage.curves:
        plots.append(_percentile_curves(f"{prefix}-percentiles", stage))
    if stage.series is not None and stage.series.start:
        plots += _time_series(prefix, stage, stage.series)
    return plots


def figure_of(data: list[Trace], xaxis: dict[str, Any], yaxis: dict[str, Any], **layout: Any) -> dict[str, Any]:
    """The figure of these traces and axes."""
    legend = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.03, "yanchor": "bottom"}
    margin = {"l": 64, "r": 16, "t": 36, "b": 44}
    axes = {"xaxis": {"automargin": True, **xaxis}, "yaxis": {"automargin": True, **yaxis}}
    return {"data": data, "layout": {**axes, "legend": legend, "margin": margin, "showlegend": True, **layout}}


def seconds_axis(traces: list[Trace]) -> dict[str, Any]:
    """A logarithmic axis of times with its ticks at 1, 2 and 5, or at 1 alone where it spans many decades.

    Where it spans next to nothing the ticks are plotly's own: none of these might lie on it.
    """
    values = [y for trace in traces for y in trace["y"] if y and y > 0 and trace.get("visible") != "legendonly"]
    decades = math.log10(max(values) / min(values)) if values else 1.0
    if decades < 0.2:
        return {"type": "log", "tickformat": ".3~s", "hoverformat": ".3s", "ticksuffix": "s", "nticks": 6}
    digits = (1, 1.5, 2, 3, 4, 5, 7) if decades < 0.8 else (1, 2, 5) if decades < 3.5 else (1,)
    ticks = [digit * 10.0**exponent for exponent in range(-6, 4) for digit in digits]
    return {
        "type": "log",
        "tickvals": ticks,
        "ticktext": [_tick(seconds) for seconds in ticks],
        "hoverformat": ".3s",
        "ticksuffix": "s",
    }


def _tick(seconds: float) -> str:
    for per_unit, unit in ((1, "s"), (1e3, "ms")):
        if seconds * per_unit >= 0.9999:
            return f"{seconds * per_unit:.6g} {unit}"
    return f"{seconds * 1e6:.6g} us"


def title(text: str) -> dict[str, str]:
    """The title of an axis."""
    return {"text": text}


# --- percentile curves ------------------------------------------------------------------------------------------------


def _percentile_curves(plot_id: str, stage: Stage) -> Plot:
    traces: list[Trace] = []
    latencies = stage.latency_seconds.named()
    for metric, curve in stage.curves.items():
        if metric in latencies:
            traces += _curve(metric, latencies[metric], curve)
    ticks = {"tickvals": [at for at, _ in _DECADES], "ticktext": [f"{text} %" for _, text in _DECADES]}
    return Plot(
        id=plot_id,
        caption="Latency by percentile",
        about="Solid where at least 10 samples lie beyond the percentile, dotted past that. "
        "Bars are 95 % intervals; a triangle marks one that is open above.",
        figure=figure_of(
            traces,
            {"type": "log", "title": title("percentile of requests (of gaps for itl)"), **ticks},
            seconds_axis(traces),
            hovermode="closest",
        ),
        wide=True,
    )


def _curve(metric: str, latency: Latency, curve: list[tuple[float, float]]) -> list[Trace]:
    """The known part of a curve, the part past it, and the reported percentiles with their intervals."""
    points = [(fraction, seconds) for fraction, seconds in curve if fraction < 1 and seconds > 0]
    edge = sum(latency.count * (1 - fraction) >= _BEYOND for fraction, _ in points)
    colour = COLOURS.get(metric, NEUTRAL)
    shared: Trace = {"legendgroup": metric, "name": metric}
    if metric not in _CURVES_SHOWN:
        shared["visible"] = "legendonly"
    known = {**shared, "mode": "lines", "line": {"color": colour, "width": 2}, **_along(points[:edge])}
    past = {
        **shared,
        "mode": "lines",
        "line": {"color": colour, "width": 1.5, "dash": "dot"},
        "showlegend": edge == 0,
        **_along(points[max(0, edge - 1) :]),
    }
    return [trace for trace in (known, past) if trace["x"]] + _marks(metric, latency, shared)


def _along(points: list[tuple[float, float]]) -> Trace:
    return {
        "x": [1 / (1 - fraction) for fraction, _ in points],
        "y": [seconds for _, seconds in points],
        "customdata": [f"p{100 * fraction:.6g}" for fraction, _ in points],
        "hovertemplate": "%{fullData.name} %{customdata}: %{y:.3s}s<extra></extra>",
    }


def _marks(metric: str, latency: Latency, shared: Trace) -> list[Trace]:
    names = [name for name in PERCENTILES if is_sufficient(latency, name)]
    if not names:
        return []
    marks = with_bars([latency] * len(names), names, COLOURS.get(metric, NEUTRAL))
    x = [1 / (1 - PERCENTILES[name]) for name in names]
    return [{**shared, **marks, "mode": "markers", "showlegend": False, "x": x}]


def with_bars(latencies: list[Latency | None], names: list[str], colour: str) -> Trace:
    """Values with their intervals as error bars; one that is not known is a gap, one open above a triangle."""
    known = [
        latency if latency and is_sufficient(latency, name) else None
        for latency, name in zip(latencies, names, strict=True)
    ]
    bars = [_bar(latency, name) for latency, name in zip(known, names, strict=True)]
    return {
        "y": [latency.percentile(name) if latency else None for latency, name in zip(known, names, strict=True)],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [above for _, above, _ in bars],
            "arrayminus": [below for below, _, _ in bars],
            "thickness": 1.2,
            "width": 4,
        },
        "marker": {
            "color": colour,
            "size": [10 if is_open else 7 for *_, is_open in bars],
            "symbol": ["triangle-up" if is_open else "circle" for *_, is_open in bars],
        },
        "customdata": [escape(f"{name} {shown(latency, name)}") for latency, name in zip(known, names, strict=True)],
        "hovertemplate": "%{fullData.name}: %{customdata}<extra></extra>",
    }


def _bar(latency: Latency | None, name: str) -> tuple[float, float, bool]:
    """What the interval adds below and above, and whether it is open above."""
    if latency is None:
        return 0.0, 0.0, False
    low, high = latency.ci.get(name, (latency.percentile(name),) * 2)
    value = latency.percentile(name)
    is_open = high is None or latency.at_least.get(name, False)
    return max(0.0, value - low), 0.0 if high is None else max(0.0, high - value), is_open


# --- time series ------------------------------------------------------------------------------------------------------


def _time_series(prefix: str, stage: Stage, series: Series) -> list[Plot]:
    middle = [start + series.interval / 2 for start in series.start]
    outside = _outside(stage, series)

    def plot(name: str, caption: str, about: str, traces: list[Trace], yaxis: dict[str, Any]) -> Plot:
        xaxis = {"title": title("seconds from the start of the stage"), "hoverformat": ".3~f"}
        figure = figure_of(
            [{"x": middle, "mode": "lines", **trace} for trace in traces],
            {**xaxis, "range": [series.start[0], series.start[-1] + series.interval]},
            yaxis,
            hovermode="x unified",
            shapes=outside,
        )
        return Plot(f"{prefix}-{name}", caption, about, figure)

    def rate(name: str, counts: list[int], colour: str) -> Trace:
        return _line(name, [count / series.interval for count in counts], colour)

    shading = " The shaded parts lie outside of the window." if outside else ""
    from_zero = {"rangemode": "tozero"}
    lines = [
        _line("ttft p50", series.ttft_p50, COLOURS["ttft"], dash="dot"),
        _line("ttft p99", series.ttft_p99, COLOURS["ttft"]),
        _line("response p50", series.response_p50, COLOURS["response"], dash="dot"),
        _line("response p99", series.response_p99, COLOURS["response"]),
    ]
    latencies = [line for line in lines if any(value is not None for value in line["y"])]
    return [
        plot(
            "latency",
            "Latency over time",
            f"Of the requests intended in each interval.{shading}",
            latencies,
            seconds_axis(latencies),
        ),
        plot(
            "rates",
            "Requests per second",
            f"Arrivals, completions and failures, each at its own instant.{shading}",
            [
                rate("arrivals", series.arrivals, COLOURS["ttft"]),
                rate("completed", series.completed, COLOURS["itl"]),
                rate("failed", series.failed, COLOURS["failed"]),
            ],
            from_zero,
        ),
        plot(
            "in-flight",
            "Requests in flight",
            f"The mean of each interval.{shading}",
            [_line("in flight", series.in_flight, COLOURS["tpot"])],
            from_zero,
        ),
        plot(
            "tokens",
            "Output tokens per second",
            f"Tokens as they arrive.{shading}",
            [_line("output tokens/s", series.output_tokens, COLOURS["service"])],
            from_zero,
        ),
    ]


def _line(name: str, values: list[Any], colour: str, dash: str = "solid") -> Trace:
    return {"name": name, "y": values, "line": {"color": colour, "width": 1.6, "dash": dash}}


def _outside(stage: Stage, series: Series) -> list[dict[str, Any]]:
    """Shapes over what lies before and after the window."""
    begin, end = stage.window.start, stage.window.start + stage.window.seconds
    last = series.start[-1] + series.interval
    spans = [(series.start[0], begin), (end, last)]
    shape = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "line": {"width": 0}, "layer": "below"}
    return [{**shape, "x0": x0, "x1": x1} for x0, x1 in spans if x1 - x0 > series.interval / 100]
