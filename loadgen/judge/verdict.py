"""The generator judges itself: are the numbers the target's, or its own? The rules of docs/metrics.md.

Reasons make a run invalid; warnings tell what a reader should know. Each is one sentence with its numbers.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from loadgen.judge.slo import UNDECIDED
from loadgen.measure.journal import RunEnd
from loadgen.summary.stage import Finding
from loadgen.summary.summary import Latency, SloCheck, SloVerdict, Stage, Verdict
from loadgen.units import format_seconds

LATENESS_FLOOR_SECONDS: Final = 0.010
LATENESS_SHARE: Final = 0.05
SENT_SHARE: Final = 0.99
BUSY_CPU: Final = 0.90
PROMPT_TOLERANCE: Final = 0.02


def judge(
    findings: Sequence[Finding],
    end: RunEnd | None,
    deaths: Sequence[str],
    told: Sequence[str],
    slo: SloVerdict | None,
) -> Verdict:
    """The verdict on a run.

    end: how it ended; None where it was killed.
    deaths: how worker processes died, a sentence each.
    told: warnings that the run itself gave.

    What the stages of a search show bears on what it found (`search.program.search_result`) and not on the run.
    """
    reasons, warnings = [], [*told, *deaths]
    if end is not None and end.failure is not None:
        reasons.append(_sentence(f"the run failed: {end.failure}"))
    for finding in findings:
        label = f"Stage {finding.stage.name}: " if len(findings) > 1 else ""
        if not finding.stage.asked_by_search:
            reasons += [_sentence(label + text) for text in finding.stage.generator_faults]
            warnings += [_sentence(label + text) for text in _warnings(finding)]
    if end is None:
        warnings.append("The run was killed before its end: later stages may be missing.")
    elif end.interrupted:
        warnings.append("The run was interrupted: it covers what was measured up to then.")
    if not findings:
        reasons.append("Nothing was measured: no stage began.")
    if slo is not None:
        warnings += [_undecided(check) for check in slo.checks if check.outcome == UNDECIDED]
    return Verdict(valid=not reasons, reasons=reasons, warnings=warnings, slo=slo)


def lateness_bound(stage: Stage) -> float:
    """How late the generator may be in this stage, in seconds: 10 ms, or 5 % of what the target took if that is more.

    That is the median service TTFT, or the median service time where nothing streams.
    """
    typical = stage.latency_seconds.service_ttft or stage.latency_seconds.service
    return max(LATENESS_FLOOR_SECONDS, LATENESS_SHARE * typical.p50 if typical is not None else 0.0)


def generator_faults(finding: Finding) -> list[str]:
    """Why the numbers of a stage are not the target's, a clause each; none where they are."""
    return list(_reasons(finding))


# --- reasons ----------------------------------------------------------------------------------------------------------


def _reasons(finding: Finding) -> Iterator[str]:
    stage = finding.stage
    books = stage.books
    if not finding.ended:
        yield "cut off before its end: which requests were outstanding is not known, and the slowest are missing"
    if books.ended != books.intended:
        yield f"the books do not balance: {books.intended} requests were intended and {books.ended} are accounted for"
    for name, latency in stage.latency_seconds.named().items():
        if latency.min < 0:
            yield f"{name} goes down to {latency.min:.3g} s: an instant lies before the one it is measured from"
    if not finding.judged:
        return
    bound = lateness_bound(stage)
    lateness = stage.latency_seconds.lateness
    blame = _bottleneck(finding)
    if lateness is not None and lateness.p99 > bound:
        yield f"{_exceeds('lateness', lateness, bound)}: requests were sent late; {blame}"
    # Where a number of requests ends the window, the last of them is due at that very instant.
    due = stage.window.books.intended - finding.excused - (stage.ended_by == "requests")
    if stage.window.sent < SENT_SHARE * due:
        yield (
            f"only {stage.window.sent} of {due} requests intended in the window were sent within it"
            f" ({_percent(stage.window.sent / due)}; {_percent(SENT_SHARE)} are needed); {blame}"
        )
    if finding.loop_lag is not None and finding.loop_lag.p99 > bound:
        yield f"{_exceeds('event loop lag', finding.loop_lag, bound)}: timestamps were taken late; {blame}"


def _exceeds(what: str, latency: Latency, bound: float) -> str:
    """Of fewer than a hundred, p99 is the latest one, and is said to be."""
    of_few = f" (the latest of {latency.count})" if latency.count < 100 else ""
    return f"{what} p99 is {format_seconds(latency.p99)}{of_few}, above the bound of {format_seconds(bound)}"


def _bottleneck(finding: Finding) -> str:
    """Which process could not keep up, and what to do about it."""
    if busy := _busy(finding.worker_cpu):
        who = ", ".join(f"worker {worker} used {_percent(cpu)}" for worker, cpu in busy.items())
        return f"{who} of a core: give the run more workers.processes"
    if finding.parent_cpu is not None and finding.parent_cpu >= BUSY_CPU:
        return f"the parent process used {_percent(finding.parent_cpu)} of a core: run fewer, busier workers.processes"
    shares = {f"worker {worker}": cpu for worker, cpu in finding.worker_cpu.items()}
    if finding.parent_cpu is not None:
        shares["the parent process"] = finding.parent_cpu
    look = "look for other load on this machine, or for something that blocks the event loop"
    if not shares:
        return look
    busiest = max(shares, key=shares.__getitem__)
    return (
        f"the generator's busiest process, {busiest}, used no more than {_percent(shares[busiest])} of a core: {look}"
    )


# --- warnings ---------------------------------------------------------------------------------------------------------


def _warnings(finding: Finding) -> Iterator[str]:
    yield from _about_the_target(finding.stage)
    yield from _about_the_load(finding)
    yield from _about_tokens(finding)
    for worker, cpu in _busy(finding.worker_cpu).items():
        yield f"worker {worker} used {_percent(cpu)} of a core: close to its limit, unless it runs an engine itself"
    if finding.parent_cpu is not None and finding.parent_cpu >= BUSY_CPU:
        yield f"the parent process used {_percent(finding.parent_cpu)} of a core: close to its limit"


def _about_the_target(stage: Stage) -> Iterator[str]:
    books = stage.window.books
    if not stage.books.completed:
        yield "nothing completed"
    if books.failures:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(books.failed.items(), key=lambda item: -item[1]))
        share = books.failures / (books.completed + books.failures)
        yield f"{_percent(share)} of the requests that ended in the window failed: {kinds}"
    if books.unfinished:
        yield f"{books.unfinished} requests of the window had not ended when the stage was over: lower bounds stand in"
    if books.lost:
        yield f"{books.lost} requests of the window were lost with a worker that died"
    if stage.stationary.verdict == "unstable":
        yield f"unstable, so that its latencies describe no steady state: {stage.stationary.reason}"
    elif stage.stationary.verdict == "too_short":
        yield f"too short to tell whether it was stable: {stage.stationary.reason}"


def _about_the_load(finding: Finding) -> Iterator[str]:
    stage = finding.stage
    bound = lateness_bound(stage)
    queued = stage.latency_seconds.queued
    if finding.judged and queued is not None and queued.p99 > bound:
        yield (
            f"requests waited for a slot, p99 {format_seconds(queued.p99)}: workers.max_inflight is too low or the"
            " target too slow; the wait counts in response time and TTFT"
        )
    elif finding.judged and finding.excused and queued is None:
        yield (
            f"none of the {finding.excused} requests of the window that waited for a slot got one: workers.max_inflight"
            " is too low or the target too slow"
        )
    if stage.window.books.dropped:
        share = stage.window.books.dropped / stage.window.books.intended
        yield f"{stage.window.books.dropped} requests ({_percent(share)}) were dropped for want of a free slot"
    if stage.rows_again:
        yield (
            f"{stage.rows_again} requests said what earlier ones of the run had said, as the dataset has fewer rows:"
            " a prefix cache knows them"
        )
    if stage.intended_concurrency is not None:
        yield "a closed loop: response times are conditioned on the target's own pace"
    if finding.unsettled:
        yield "no end of the warm-up was found in the first half of the stage; the second half is measured"


def _about_tokens(finding: Finding) -> Iterator[str]:
    stage, tokens = finding.stage, finding.stage.tokens
    if tokens.prompt is not None and tokens.prompt_asked and not finding.more_than_prompts:
        off = (tokens.prompt - tokens.prompt_asked) / tokens.prompt_asked
        if abs(tokens.prompt - tokens.prompt_asked) > PROMPT_TOLERANCE * tokens.prompt_asked:
            yield (
                f"prompts had {tokens.prompt:.1f} tokens on average by the server's count, {off:+.1%} of the"
                f" {tokens.prompt_asked:.1f} that were asked for"
            )
    if stage.short:
        share = stage.short / stage.books.completed
        yield f"{stage.short} outputs ({_percent(share)}) were shorter than asked for: does the context clip them?"
    if tokens.counted_by == "chunks":
        yield "output tokens are counted by chunks, as the server told no usage: a chunk may hold several tokens"


def _busy(cpu: dict[int, float]) -> dict[int, float]:
    return {worker: share for worker, share in sorted(cpu.items()) if share >= BUSY_CPU}


def _undecided(check: SloCheck) -> str:
    promise = " ".join(filter(None, (check.metric, check.percentile)))
    return f"Whether the SLO on {promise} is met in stage {check.stage} cannot be told from a run of this length."


def _percent(share: float) -> str:
    return f"{share:.1%}".replace(".0%", "%").replace("%", " %")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:].rstrip(".") + "."
