"""What each kind of workload asks of an engine that generates, and what it reads from an answer that is more than text.

The kinds mean what they mean over HTTP (`targets.http.endpoints`). Embedding is no generation: see `embed`.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from loadgen.measure.outcome import Exchange
from loadgen.profile import KINDS, EngineTarget, Workload
from loadgen.targets.engine.sampling import Sampling, sampling_of
from loadgen.targets.http.endpoints.choice import labels_by_text, longest_answer, note_label
from loadgen.targets.http.endpoints.constraint import CURRENT, fields_for
from loadgen.targets.http.endpoints.score import note_scores
from loadgen.workload.request import Request

_SAME: Final = {"max_completion_tokens": "max_tokens"}

ReadOutput = Callable[[Any, Exchange], None]
"""Reads the one output of a whole answer into its exchange: what came back, and a failure where it is no answer."""


class EngineKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of workload, by how it differs from a completion."""

    chat: bool = False
    """Whether the names of its body are a chat's."""
    streams: bool = True
    """Whether its answers can be streamed."""
    fields: dict[str, Any] = {}
    """Of its body, the same in every request. The profile's own body lies over them."""
    own_fields: Callable[[Request], dict[str, Any]] | None = None
    """What of these a request has of its own, where the profile's body leaves it to it."""
    reader: Callable[[Request], ReadOutput] | None = None
    """How the answer to a request is read, where it is more than text."""
    hears: bool = False
    """Whether its prompts are sounds to be written down; the body then may say their `language`."""


def engine_kind(workload: Workload) -> EngineKind:
    """How an engine is asked for this workload, which is of a kind that generates."""
    special = _SPECIAL.get(workload.kind)
    return EngineKind(chat=KINDS[workload.kind].conversation) if special is None else special(workload)


def kind_sampling(
    workload: Workload, target: EngineTarget, defaults: Mapping[str, Any], names: Collection[str]
) -> Sampling:
    """What every request of a workload has in common, over the model's own `defaults`; `names` as for `sampling_of`.

    Raises:
        LoadgenError: `workload.body` holds what an engine has no use for.
    """
    kind = engine_kind(workload)
    body = {**kind.fields, **workload.body}
    if kind.hears:  # it is told to the model, and no sampling parameter
        body.pop("language", None)
    return sampling_of(body, defaults, names, chat=kind.chat, stream=target.stream and kind.streams)


def _choice(workload: Workload) -> EngineKind:
    theirs = {_SAME.get(name, name) for name in workload.body}

    def asked(labels: tuple[str, ...]) -> dict[str, Any]:
        return {"max_tokens": longest_answer(labels), **fields_for(CURRENT, labels)}

    def own_fields(request: Request) -> dict[str, Any]:
        own = {} if request.labels is None else asked(request.labels)
        return {name: value for name, value in own.items() if name not in theirs}

    def reader(request: Request) -> ReadOutput:
        return partial(_read_label, by_text if request.labels is None else labels_by_text(request.labels))

    by_text, fields = labels_by_text(workload.labels), asked(workload.labels)
    return EngineKind(chat=True, streams=False, fields=fields, own_fields=own_fields, reader=reader)


def _score(workload: Workload) -> EngineKind:
    # An echo with logprobs over HTTP is both of these here, and `logprobs` of the body is how many others are told.
    others = workload.body.get("logprobs", 0)
    fields = {"prompt_logprobs": others, "logprobs": others, "max_tokens": 1, "temperature": 0}
    return EngineKind(
        streams=False, fields=fields, reader=lambda request: partial(_read_scores, request.scored_tokens or 0)
    )


def _transcribe(workload: Workload) -> EngineKind:
    return EngineKind(fields={"temperature": 0.0}, hears=True)  # as the server, whatever the model's own defaults


_SPECIAL: Final[dict[str, Callable[[Workload], EngineKind]]] = {
    "choice": _choice,
    "score": _score,
    "transcribe": _transcribe,
}


def _read_label(labels: Mapping[str, str], output: Any, exchange: Exchange) -> None:
    note_label(output.outputs[0].text, exchange, labels)


def _read_scores(scored_tokens: int, output: Any, exchange: Exchange) -> None:
    """Count the tokens at the prompt's end that have a log-probability: vLLM tells each with those beside it."""
    scores = (output.prompt_logprobs or ())[-scored_tokens:]
    note_scores(sum(map(bool, scores)), exchange, scored_tokens)
