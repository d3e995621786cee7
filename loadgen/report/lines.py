"""What a report says in lines of label and words: books, rates, tokens, and the generator's judgement of itself."""

from collections import Counter
from typing import Final

import msgspec

from loadgen.measure.outcome import Books
from loadgen.report.tables import (
    Write,
    brief,
    interval,
    is_sufficient,
    offered,
    per_second,
    percent,
    printable,
    setting_text,
    shown,
    significant,
)
from loadgen.summary.summary import Generator, Items, Latency, Stage, TargetStart, Tokens, WorkerReport
from loadgen.units import format_seconds

_MANY_WORKERS: Final = 8
_NOTABLE_DIFFERENCE: Final = 0.02
_COUNTED_BY: Final = {
    "usage": "counted by the server",
    "token_ids": "counted by token ids",
    "chunks": "CHUNKS, not tokens: the server told no count",
}


class Line(msgspec.Struct, frozen=True):
    """A label and what is said under it."""

    label: str
    text: str


def stage_lines(stage: Stage) -> list[Line]:
    """All that is said of a stage beside its latencies and its SLO."""
    lines = [
        *_condition(stage),
        Line("load", _load(stage)),
        Line("stationary", f"{stage.stationary.verdict.replace('_', ' ')}: {printable(stage.stationary.reason)}"),
        Line("throughput", _throughput(stage)),
        *_attainment(stage),
        Line("concurrency", _concurrency(stage)),
        Line("tokens", _tokens(stage.tokens)),
        Line("books", books_line(stage.books)),
    ]
    lines += _answers(stage)
    lines += _failures(stage)
    if stage.window.books != stage.books:
        lines.append(Line("in window", books_line(stage.window.books)))
    lines += [Line("generator", brief(fault)) for fault in stage.generator_faults]
    if stage.short:
        lines.append(Line("short", f"{stage.short:,} completed requests ended before the tokens asked for"))
    return lines


def faults_over(stages: list[Stage]) -> list[Line]:
    """What the generator did wrong in stages of a search, which bears on what it found and not on the whole run."""
    return [
        Line(f"stage {number}", f"the generator: {brief(fault)}")
        for number, stage in enumerate(stages, 1)
        if stage.purpose is not None
        for fault in stage.generator_faults
    ]


def failures_over(stages: list[Stage]) -> list[Line]:
    """A line for each kind of failure over all stages: how many there were, where, and the words of one."""
    counts = Counter[str]()
    places: dict[str, list[int]] = {}
    words: dict[str, str] = {}
    for number, stage in enumerate(stages, 1):
        counts.update(stage.books.failed)
        for kind in stage.books.failed:
            places.setdefault(kind, []).append(number)
        words = {**stage.failure_messages, **words}
    lines = []
    for kind, count in _largest_first(counts):
        where = f"in stage{'' if len(places[kind]) == 1 else 's'} {', '.join(map(str, places[kind]))}"
        lines.append(Line(f"failed {printable(kind)}", f"{count:,} {where}   {brief(words.get(kind, ''))}".rstrip()))
    return lines


def books_line(books: Books) -> str:
    """The accounts as one equation; "≠" and how many are missing where they do not balance."""
    accounts = {
        "completed": books.completed,
        "failed": books.failures,
        "cancelled": books.cancelled,
        "dropped": books.dropped,
        "lost": books.lost,
        "unfinished": books.unfinished,
    }
    parts = [f"{count:,} {name}" for name, count in accounts.items() if count or name == "completed"]
    if books.ended == books.intended:
        return f"{books.intended:,} intended = {' + '.join(parts)}"
    missing = books.intended - books.ended
    return f"{books.intended:,} intended ≠ {' + '.join(parts)}: THE BOOKS DO NOT BALANCE, {missing:,} missing"


def counts_line(counts: dict[str, int]) -> str:
    """Counts by kind, the largest first."""
    return ", ".join(f"{count:,} {printable(kind)}" for kind, count in _largest_first(counts))


def _largest_first(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _answers(stage: Stage) -> list[Line]:
    """What came back beside text: labels, vectors, scored tokens; and how often the server had a request wait."""
    lines = []
    if stage.labels:
        total = sum(stage.labels.values())
        counts = _largest_first(stage.labels)
        shares = ", ".join(f"{printable(label)} {count:,} ({percent(count / total)})" for label, count in counts)
        lines.append(Line("labels", shares))
    if stage.accuracy is not None:
        right = stage.accuracy
        words = f"{percent(right.share)}: {right.correct:,} of {right.judged:,} answers are the expected label"
        lines.append(Line("accuracy", words))
    items = stage.items
    if items is not None and items.mean is not None:
        size = "" if items.dimensions is None else f" of {significant(items.dimensions)} dimensions"
        lines.append(Line(printable(items.what), f"{significant(items.mean)} a request{size}{_pace(items)}"))
    if stage.retries:
        lines.append(Line("retries", f"{stage.retries:,} as the server asked; their waits count in response time"))
    return lines


def _pace(items: Items) -> str:
    """How fast sounds were written down, against the time that they last."""
    factor = items.real_time_factor
    return "" if factor is None else f", real-time factor {significant(factor)} (mean service time by length)"


def _failures(stage: Stage) -> list[Line]:
    """A line for each kind of failure: how many there were, and the words of one where any are known."""
    ordered = [(kind, f"{count:,}") for kind, count in _largest_first(stage.books.failed)]
    width = max((len(count) for _, count in ordered), default=0)
    words = {kind: brief(message) for kind, message in stage.failure_messages.items()}
    return [
        Line(f"failed {printable(kind)}", f"{count:>{width}}   {words.get(kind, '')}".rstrip())
        for kind, count in ordered
    ]


def _condition(stage: Stage) -> list[Line]:
    """What tells the stage from others of its run, where it is one of a search, a grid or repeats."""
    lines = []
    if stage.purpose is not None:
        lines.append(Line("purpose", printable(stage.purpose)))
    if stage.settings:
        told = (f"{printable(key)} = {setting_text(value)}" for key, value in stage.settings.items())
        lines.append(Line("settings", ", ".join(told)))
    if stage.repeat is not None:
        lines.append(Line("repeat", f"{stage.repeat:,}"))
    return lines


def _load(stage: Stage) -> str:
    window = stage.window
    start = f" from {format_seconds(window.start)} on" if window.start > 0 else ""
    reason = "" if stage.end_reason is None else f": {brief(stage.end_reason)}"
    return (
        f"{printable(stage.kind)}, offered {offered(stage)}, window of {format_seconds(window.seconds)}{start}, "
        f"ended by {printable(stage.ended_by)}{reason}"
    )


def _throughput(stage: Stage) -> str:
    rates = stage.throughput
    goodput = (
        "" if rates.goodput is None else f", goodput {_with_interval(rates.goodput, rates.goodput_ci, per_second)}"
    )
    items = "" if stage.items is None or rates.items is None else f", {significant(rates.items)} {stage.items.what}/s"
    unit = "chunks" if stage.tokens.counted_by == "chunks" else "tokens"
    return (
        f"{significant(rates.requests)} requests/s{goodput}, {significant(rates.output_tokens)} output {unit}/s, "
        f"{significant(rates.prompt_tokens)} prompt tokens/s{items}"
    )


def _attainment(stage: Stage) -> list[Line]:
    share = stage.attainment
    if share is None:
        return []
    return [Line("attainment", f"{_with_interval(share.value, share.ci, percent)} of the requests met their limits")]


def _with_interval(value: float, ci: tuple[float, float] | None, write: Write) -> str:
    return f"{write(value)} {interval(ci, write)}".rstrip()


def _concurrency(stage: Stage) -> str:
    slots = "" if stage.intended_concurrency is None else f" of {stage.intended_concurrency:,} slots"
    return f"mean {significant(stage.concurrency.mean)}, max {stage.concurrency.max:,}{slots}"


def _tokens(tokens: Tokens) -> str:
    parts = [
        _asked("prompt", tokens.prompt_asked, tokens.prompt),
        _asked("output", tokens.output_asked, tokens.output),
    ]
    if tokens.per_chunk is not None:
        parts.append(f"{significant(tokens.per_chunk)} per chunk")
    if tokens.events_per_read is not None:
        parts.append(f"{significant(tokens.events_per_read)} events per read")
    if not any(parts):
        return "not known"
    counted = _COUNTED_BY.get(tokens.counted_by, "")
    return "; ".join(part for part in (*parts, counted) if part)


def _asked(what: str, asked: float | None, measured: float | None) -> str:
    if measured is None:
        return "" if asked is None else f"{what} {significant(asked)} asked, not measured"
    if not asked:
        return f"{what} {significant(measured)}"
    difference = measured / asked - 1
    note = f" ({difference:+.1%})".replace("%", " %") if abs(difference) > _NOTABLE_DIFFERENCE else ""
    return f"{what} {significant(asked)} asked, {significant(measured)} measured{note}"


# --- the generator ----------------------------------------------------------------------------------------------------


def generator_lines(generator: Generator) -> list[Line]:
    """The generator's own error and cost; many workers are summed up, and those that died are named all the same."""
    exhausted = generator.credits_exhausted_seconds
    lines = [
        Line("lateness", _error(generator.lateness)),
        Line("loop lag", _error(generator.loop_lag)),
    ]
    if generator.parent_cpu is not None:
        lines.append(Line("parent", f"{percent(generator.parent_cpu)} of a core"))
    if exhausted:
        lines.append(Line("credits", f"exhausted for {format_seconds(exhausted)}"))
    workers = generator.workers
    if starts := [worker.target for worker in workers if worker.target is not None]:
        lines.append(Line("engine" if len(starts) == 1 else "engines", _starts(starts)))
    if len(workers) > _MANY_WORKERS:
        lines.append(Line("workers", _many(workers)))
        workers = [worker for worker in workers if worker.deaths]
    return lines + [Line(f"worker {worker.worker}", _worker(worker)) for worker in workers]


def _starts(starts: list[TargetStart]) -> str:
    """How long the engines took to start and what they hold, as the range over the workers."""
    seconds = _range([format_seconds(start.start_seconds) for start in sorted(starts, key=lambda s: s.start_seconds)])
    memory = _range([_gigabytes(start.memory_bytes) for start in sorted(starts, key=lambda s: s.memory_bytes)])
    if len(starts) == 1:
        return f"started in {seconds}, {memory}"
    return f"{len(starts)}, started in {seconds}, {memory} each"


def _range(ascending: list[str]) -> str:
    low, high = ascending[0], ascending[-1]
    return low if low == high else f"{low} to {high}"


def _gigabytes(size: int) -> str:
    return f"{significant(size / 1e9)} GB"


def _error(latency: Latency | None) -> str:
    if latency is None:
        return "not measured"
    known = [name for name in ("p50", "p99", "p99.9") if is_sufficient(latency, name)]
    parts = [f"{name} {shown(latency, name).text}" for name in known]
    return ", ".join([*parts, f"max {format_seconds(latency.max)}", f"{latency.count:,} samples"])


def _worker(worker: WorkerReport) -> str:
    died = f"; restarted {worker.restarts:,}" if worker.restarts else ""
    if worker.deaths:
        died += f"; died: {', '.join(map(brief, worker.deaths))}"
    return (
        f"{percent(worker.cpu)} of a core, {worker.rss_bytes / 1e6:,.0f} MB, "
        f"gc {format_seconds(worker.gc_seconds)} (longest {format_seconds(worker.gc_max_seconds)}), "
        f"pid {worker.pid}{died}"
    )


def _many(workers: list[WorkerReport]) -> str:
    mean = sum(worker.cpu for worker in workers) / len(workers)
    busiest = max(workers, key=lambda worker: worker.cpu)
    rss = sum(worker.rss_bytes for worker in workers)
    longest = max(worker.gc_max_seconds for worker in workers)
    return (
        f"{len(workers)}, {percent(mean)} of a core each, at most {percent(busiest.cpu)} (worker {busiest.worker}), "
        f"{rss / 1e6:,.0f} MB in all, longest gc {format_seconds(longest)}"
    )
