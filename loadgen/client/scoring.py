"""The log-probability of a completion: of exact token ids, after exact token ids.

What is scored is sent as ids, so that the border between prompt and completion is where we put it and not where a
second tokenization might. Which ids a completion has after its prompt is told by the text of both in one: the prompt's
own tokens come first in it, and what follows are the completion's. Where they do not come first, a token crosses the
border (or the text changed what stands before it); then the ids of the completion alone are scored, and it is told.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import anyio
import msgspec

from loadgen.client.connection import Connection, typed
from loadgen.client.tokens import RENDERING, detokenize, ids_of_chat, ids_of_text
from loadgen.client.types import Messages, RequestError, ScoringResponse, Token, TokenLogprob, messages_of
from loadgen.errors import one_failure
from loadgen.targets.http.chunks import PROTOCOL
from loadgen.targets.http.endpoints.constraint import UNWANTED

T = TypeVar("T")

_AT_ONCE: Final = 16
"""How many completions of one prompt are tokenized, or scored, at the same time."""
_GENERATING: Final = frozenset(
    {*RENDERING, *UNWANTED, "max_completion_tokens", "n", "response_format", "stop", "tool_choice", "top_logprobs"}
)
"""Fields of a chat's body that have no place beside a score: its prompt is rendered, and nothing is answered."""
_GENERATED: Final = 1
"""Tokens asked for beside the score: none is refused by some servers. It is no part of the score."""


class Prompt(msgspec.Struct, frozen=True):
    """A prompt as token ids, and the text from which they come."""

    ids: tuple[int, ...]
    text: str
    special: bool
    """Whether the ids are those of the text with the tokenizer's own special tokens before it."""


class Continuation(msgspec.Struct, frozen=True):
    """The token ids of a completion after its prompt; `merged` as in `ScoringResponse`."""

    ids: tuple[int, ...]
    merged: bool | None


class _Entry(msgspec.Struct):
    logprob: float
    decoded_token: str | None = None
    rank: int | None = None


class _Lists(msgspec.Struct):
    """The parallel lists of the completions API, one item a token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(msgspec.Struct):
    prompt_logprobs: list[dict[int, _Entry] | None] | None = None
    logprobs: _Lists | None = None


class _Scores(msgspec.Struct):
    choices: list[_Choice]


async def score(
    connection: Connection,
    prompt: Messages,
    completion: str | None,
    top_logprobs: int,
    fields: Mapping[str, Any],
) -> ScoringResponse:
    """What `VLLMClient.ascore` promises, `fields` being those of a chat's body."""
    if not completion:
        raise ValueError("no completion to score")
    before = await prompt_of(connection, prompt, fields)
    after = (await continuations(connection, before, [completion]))[completion]
    if not after.ids:
        raise ValueError("the completion adds no token to the prompt")
    logprobs, raw = await score_ids(connection, before.ids, after.ids, top_logprobs, fields)
    return ScoringResponse(completion, logprobs, after.merged, raw)


async def prompt_of(connection: Connection, given: Messages, fields: Mapping[str, Any]) -> Prompt:
    """A plain prompt for a text; for messages what the server's own chat template makes of them.

    `fields` are those of a chat's body: some of them decide how messages are rendered.

    Raises:
        ValueError: there are messages of more than text, or no token to score a completion after.
        RequestError: there is no good answer.
    """
    if isinstance(given, str):
        prompt = Prompt(await ids_of_text(connection, given, True), given, special=True)
    else:
        ids = await ids_of_chat(connection, messages_of(given, "prompt"), fields)
        prompt = Prompt(ids, await detokenize(connection, ids), special=False)
    if not prompt.ids:
        raise ValueError("the prompt has no token, so that the first of the completion has no probability")
    return prompt


async def continuations(connection: Connection, prompt: Prompt, completions: Iterable[str]) -> dict[str, Continuation]:
    """The ids of each completion after one prompt; raises RequestError."""
    border = len(prompt.ids)

    async def joint_ids(completion: str) -> tuple[int, ...]:
        return await ids_of_text(connection, prompt.text + completion, prompt.special)

    async def own_ids(completion: str) -> tuple[int, ...]:
        return await ids_of_text(connection, completion, False)

    joint = await together(joint_ids, completions)
    found = {said: Continuation(ids[border:], False) for said, ids in joint.items() if ids[:border] == prompt.ids}
    apart = [said for said in joint if said not in found]
    if apart:
        # Asked once for all of them: it is the prompt alone that comes back, or does not.
        merged = await ids_of_text(connection, prompt.text, prompt.special) == prompt.ids or None
        found |= {said: Continuation(ids, merged) for said, ids in (await together(own_ids, apart)).items()}
    return found


async def together(find: Callable[[str], Awaitable[T]], texts: Iterable[str]) -> dict[str, T]:
    """What `find` finds for each text, some at a time; the first failure is raised."""
    found: dict[str, T] = {}
    limit = anyio.CapacityLimiter(_AT_ONCE)

    async def note(text: str) -> None:
        async with limit:
            found[text] = await find(text)

    with one_failure():
        async with anyio.create_task_group() as tasks:
            for text in texts:
                tasks.start_soon(note, text)
    return found


async def score_ids(
    connection: Connection,
    prompt: tuple[int, ...],
    ids: tuple[int, ...],
    top_logprobs: int,
    fields: Mapping[str, Any],
) -> tuple[tuple[TokenLogprob, ...], dict[str, Any]]:
    """The log-probability of each of `ids` after `prompt` and those before it, and the server's whole answer.

    Of `fields`, those of a chat's body, the ones go along that concern any request.

    Raises:
        RequestError: there is no good answer, or it does not hold the score.
    """
    theirs = {name: value for name, value in fields.items() if name not in _GENERATING}
    ours = {"max_tokens": _GENERATED, "temperature": 0.0, "echo": True, "logprobs": top_logprobs}
    raw = await connection.complete(prompt + ids, theirs | ours)
    asked = f"POST {connection.server.api('completions')}"
    choice = typed(raw, _Scores, asked).choices[0]
    start, end = len(prompt), len(prompt) + len(ids)
    logprobs = None
    if choice.prompt_logprobs is not None:
        logprobs = _of_entries(choice.prompt_logprobs[start:end], ids, top_logprobs)
    elif choice.logprobs is not None:
        logprobs = _of_lists(choice.logprobs, start, ids)
    if logprobs is None or len(logprobs) != len(ids):
        words = f"no log-probabilities of the {len(ids)} tokens that were sent to be scored"
        raise RequestError(asked, PROTOCOL, words, 200)
    return logprobs, raw


def _of_entries(
    entries: list[dict[int, _Entry] | None], ids: tuple[int, ...], most: int
) -> tuple[TokenLogprob, ...] | None:
    """From `prompt_logprobs`, which go by id: those of the tokens sent, and of the likeliest."""
    scored = []
    for token, entry in zip(ids, entries, strict=False):
        if entry is None or token not in entry:
            return None
        ranked = sorted(entry.items(), key=lambda item: -item[1].logprob)
        tops = tuple(_logprob(other, its) for other, its in ranked[:most])
        own = _logprob(token, entry[token])
        scored.append(TokenLogprob(own.token, own.logprob, tops))
    return tuple(scored)


def _of_lists(lists: _Lists, start: int, ids: tuple[int, ...]) -> tuple[TokenLogprob, ...] | None:
    """From the parallel lists, of an older server: they begin with the prompt, and go by text."""
    scored = []
    end = start + len(ids)
    tops = lists.top_logprobs or [None] * len(lists.tokens)
    places = zip(ids, lists.tokens[start:end], lists.token_logprobs[start:end], tops[start:end], strict=False)
    for token, text, logprob, top in places:
        if logprob is None:
            return None
        ranked = sorted((top or {}).items(), key=lambda item: -item[1])
        scored.append(
            TokenLogprob(Token(text, token), logprob, tuple(TokenLogprob(Token(t), each) for t, each in ranked))
        )
    return tuple(scored)


def _logprob(token: int, entry: _Entry) -> TokenLogprob:
    return TokenLogprob(Token(entry.decoded_token or "", token), entry.logprob)
