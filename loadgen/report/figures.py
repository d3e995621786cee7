"""The charts of the HTML report as plotly figures, in plain dicts; the page's script adds the colours of the page."""

import math
from html import escape
from typing import Any, Final

import msgspec

from loadgen.metrics.summary import PERCENTILES, Latency, Series, Stage
from loadgen.report.tables import is_sufficient, offered, printable, shown

Trace = dict[str, Any]

_COLOURS: Final = {
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
_NEUTRAL: Final = "#7f8894"
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


def _figure(data: list[Trace], xaxis: dict[str, Any], yaxis: dict[str, Any], **layout: Any) -> dict[str, Any]:
    legend = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.03, "yanchor": "bottom"}
    margin = {"l": 64, "r": 16, "t": 36, "b": 44}
    axes = {"xaxis": {"automargin": True, **xaxis}, "yaxis": {"automargin": True, **yaxis}}
    return {"data": data, "layout": {**axes, "legend": legend, "margin": margin, "showlegend": True, **layout}}


def _seconds(traces: list[Trace]) -> dict[str, Any]:
    """A logarithmic axis of times with its ticks at 1, 2 and 5, or at 1 alone where it spans many decades."""
    values = [y for trace in traces for y in trace["y"] if y and y > 0 and trace.get("visible") != "legendonly"]
    decades = math.log10(max(values) / min(values)) if values else 1.0
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


def _title(text: str) -> dict[str, str]:
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
        figure=_figure(
            traces,
            {"type": "log", "title": _title("percentile of requests (of gaps for itl)"), **ticks},
            _seconds(traces),
            hovermode="closest",
        ),
        wide=True,
    )


def _curve(metric: str, latency: Latency, curve: list[tuple[float, float]]) -> list[Trace]:
    """The known part of a curve, the part past it, and the reported percentiles with their intervals."""
    points = [(fraction, seconds) for fraction, seconds in curve if fraction < 1 and seconds > 0]
    edge = sum(latency.count * (1 - fraction) >= _BEYOND for fraction, _ in points)
    colour = _COLOURS.get(metric, _NEUTRAL)
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
    marks = _with_bars([latency] * len(names), names, _COLOURS.get(metric, _NEUTRAL))
    x = [1 / (1 - PERCENTILES[name]) for name in names]
    return [{**shared, **marks, "mode": "markers", "showlegend": False, "x": x}]


def _with_bars(latencies: list[Latency | None], names: list[str], colour: str) -> Trace:
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
        xaxis = {"title": _title("seconds from the start of the stage"), "hoverformat": ".3~f"}
        figure = _figure(
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
        _line("ttft p50", series.ttft_p50, _COLOURS["ttft"], dash="dot"),
        _line("ttft p99", series.ttft_p99, _COLOURS["ttft"]),
        _line("response p50", series.response_p50, _COLOURS["response"], dash="dot"),
        _line("response p99", series.response_p99, _COLOURS["response"]),
    ]
    latencies = [line for line in lines if any(value is not None for value in line["y"])]
    return [
        plot(
            "latency",
            "Latency over time",
            f"Of the requests intended in each interval.{shading}",
            latencies,
            _seconds(latencies),
        ),
        plot(
            "rates",
            "Requests per second",
            f"Arrivals, completions and failures, each at its own instant.{shading}",
            [
                rate("arrivals", series.arrivals, _COLOURS["ttft"]),
                rate("completed", series.completed, _COLOURS["itl"]),
                rate("failed", series.failed, _COLOURS["failed"]),
            ],
            from_zero,
        ),
        plot(
            "in-flight",
            "Requests in flight",
            f"The mean of each interval.{shading}",
            [_line("in flight", series.in_flight, _COLOURS["tpot"])],
            from_zero,
        ),
        plot(
            "tokens",
            "Output tokens per second",
            f"Tokens as they arrive.{shading}",
            [_line("output tokens/s", series.output_tokens, _COLOURS["service"])],
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


# --- several stages ---------------------------------------------------------------------------------------------------


def sweep_plots(stages: list[Stage]) -> list[Plot]:
    """Latency, throughput, tokens and concurrency against the load of each stage; none for fewer than two stages."""
    if len(stages) < 2:
        return []
    title, loads = _loads(stages)
    order = sorted(range(len(stages)), key=loads.__getitem__)
    stages, loads = [stages[i] for i in order], [loads[i] for i in order]
    xaxis = {"title": _title(title), "rangemode": "tozero"}

    def plot(name: str, caption: str, about: str, traces: list[Trace], yaxis: dict[str, Any]) -> Plot:
        data = [{"mode": "lines+markers", "x": loads, **trace} for trace in traces]
        return Plot(f"sweep-{name}", caption, about, _figure(data, xaxis, yaxis, hovermode="x unified"))

    unstable = [stage for stage in stages if stage.stationary.verdict == "unstable"]
    hollow = " Hollow points were not stationary." if unstable else ""
    from_zero = {"rangemode": "tozero"}
    latencies = _latencies_of(stages)
    return [
        plot(
            "latency",
            f"Latency against {title.split(' ')[0]} load",
            f"Bars are 95 % intervals, triangles are open above, gaps had too few samples.{hollow}",
            latencies,
            _seconds(latencies),
        ),
        plot(
            "throughput", "Completed against load", f"What was asked and what came.{hollow}", _rates(stages), from_zero
        ),
        plot(
            "tokens",
            "Output tokens against load",
            f"Tokens per second in the window.{hollow}",
            [_level("output tokens/s", [s.throughput.output_tokens for s in stages], _COLOURS["service"], stages)],
            from_zero,
        ),
        plot(
            "concurrency",
            "In flight against load",
            f"Mean number of requests in flight.{hollow}",
            [_level("in flight", [s.concurrency.mean for s in stages], _COLOURS["tpot"], stages)],
            from_zero,
        ),
    ]


def _loads(stages: list[Stage]) -> tuple[str, list[float]]:
    rates = [stage.offered_rate for stage in stages if stage.offered_rate is not None]
    if len(rates) == len(stages):
        return "offered requests/s", rates
    slots = [float(stage.intended_concurrency) for stage in stages if stage.intended_concurrency is not None]
    if len(slots) == len(stages):
        return "slots of the closed loop", slots
    return "stage", [float(number) for number in range(1, len(stages) + 1)]


def _latencies_of(stages: list[Stage]) -> list[Trace]:
    wanted = (("ttft", "p50"), ("ttft", "p99"), ("itl", "p99"), ("response", "p99"))
    traces = []
    for metric, name in wanted:
        latencies = [stage.latency_seconds.named().get(metric) for stage in stages]
        if not any(latency and is_sufficient(latency, name) for latency in latencies):
            continue
        trace = _with_bars(latencies, [name] * len(stages), _COLOURS[metric])
        trace["marker"]["symbol"] = _hollowed(trace["marker"]["symbol"], stages)
        dash = "dot" if name == "p50" else "solid"
        traces.append({"name": f"{metric} {name}", "line": {"color": _COLOURS[metric], "dash": dash}, **trace})
    return traces


def _rates(stages: list[Stage]) -> list[Trace]:
    traces = []
    offered_rates = [stage.offered_rate for stage in stages]
    if None not in offered_rates:
        line = {"color": _NEUTRAL, "dash": "dot", "width": 1.2}
        traces.append({"name": "offered", "mode": "lines", "y": offered_rates, "line": line})
    traces.append(_level("completed/s", [s.throughput.requests for s in stages], _COLOURS["itl"], stages))
    goodput = [stage.throughput.goodput for stage in stages]
    if any(rate is not None for rate in goodput):
        traces.append(_level("goodput/s", goodput, _COLOURS["ttft"], stages))
    return traces


def _level(name: str, values: list[Any], colour: str, stages: list[Stage]) -> Trace:
    return {
        "name": name,
        "y": values,
        "line": {"color": colour, "width": 2},
        "marker": {"color": colour, "size": 8, "symbol": _hollowed(["circle"] * len(stages), stages)},
        "customdata": [escape(f"{printable(stage.name)}, {offered(stage)}") for stage in stages],
        "hovertemplate": "%{fullData.name}: %{y:.4~g} (%{customdata})<extra></extra>",
    }


def _hollowed(symbols: list[str], stages: list[Stage]) -> list[str]:
    return [
        f"{symbol}-open" if stage.stationary.verdict == "unstable" else symbol
        for symbol, stage in zip(symbols, stages, strict=True)
    ]
