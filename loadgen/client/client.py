"""The client: a server's calls, asynchronous and synchronous, over the HTTP target that also carries the load."""

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

import msgspec

from loadgen.client.arguments import Way, bare_key, check_arguments
from loadgen.client.blocking import LoopThread, blocking
from loadgen.client.chat import Wishes, chat
from loadgen.client.connection import Connection, Known, Settings, open_connection, typed
from loadgen.client.labels import constraint_of
from loadgen.client.scoring import score
from loadgen.client.tokens import detokenize, tokenize
from loadgen.client.types import (
    ChatResponse,
    EmbeddingResponse,
    Messages,
    ModelInfo,
    RequestError,
    ScoringResponse,
    Tokenized,
    Usage,
    messages_of,
)
from loadgen.profile import HttpTarget
from loadgen.targets.http.chunks import PROTOCOL
from loadgen.targets.http.session import ServerUrl


class VLLMClient:
    """A client of one vLLM server.

    `async with` keeps connections in the running event loop (asyncio's or uvloop's) from one call to the next, and
    closes them at the end of the block; without it each asynchronous call opens what it needs and closes it. The first
    synchronous call starts a thread of the client's own, with an event loop and connections, for all that follow;
    `with` ends it at the end of the block, `close` ends it at once, and without either it ends with the client, when
    that is garbage, or with the interpreter. The calls may be made by many tasks, or threads, at once. What is asked of
    the server once (its model, what it makes of constraints) is remembered as long as the client lives.

    Every failure is an exception: `RequestError` with kind, status and the server's words. A fault of the caller's own
    is a `ValueError`, an image or sound that cannot be read a `PromptError`.
    """

    def __init__(
        self,
        model: str = "auto",
        base_url: str = "http://localhost:8000/v1",
        *,
        api_key: str | None = None,
        timeout: float = 120.0,
        max_tokens: int = 256,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        """`model`: `auto` is the first that the server serves. `base_url`: with or without `/v1`. `api_key`: the key
        itself; space around it is cut off. `timeout`: seconds for each request, its answer included. `max_tokens`: of
        an answer, where a call does not say otherwise. `extra_body`: fields of the body of every chat; they take the
        place of ours, and what a call says takes theirs.

        Raises:
            ValueError: an argument is of another type, the address is none, a number is not positive, the key cannot be
                sent, or the answers are to be streamed.
        """
        check_arguments(model=model, base_url=base_url, api_key=api_key, timeout=timeout, max_tokens=max_tokens)
        for name, number in (("timeout", timeout), ("max_tokens", max_tokens)):
            if number is None or not number > 0:
                raise ValueError(f"{name} = {number!r}: must be above 0")
        target = HttpTarget(url=base_url, stream=False)
        self._settings = Settings(model, target, bare_key(api_key), timeout, max_tokens, _checked(extra_body))
        self._address = str(ServerUrl(base_url).at("v1"))
        self._known = Known()
        self._open: dict[asyncio.AbstractEventLoop, tuple[Connection, AsyncExitStack]] = {}
        self._thread: LoopThread[Connection] | None = None
        self._end_thread: Callable[[], object] = lambda: None
        self._starting = threading.Lock()
        self._entered = False

    def __repr__(self) -> str:
        return f"VLLMClient(model={self.model!r}, base_url={self.base_url!r})"

    @property
    def model(self) -> str:
        """The model that is named to the server: for `auto` the one that was found, once a call has asked."""
        return self._known.model or self._settings.model

    @property
    def base_url(self) -> str:
        """The address of the server's API, with `/v1` and without a user's name and password."""
        return self._address

    # --- the calls ----------------------------------------------------------------------------------------------------

    async def achat(
        self,
        messages: Messages,
        *,
        constrain_labels: Sequence[str] | None = None,
        label_logprobs: Way | None = None,
        logprobs: bool = False,
        top_logprobs: int = 5,
        temperature: float | None = None,
        max_tokens: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
    ) -> ChatResponse:
        """The model's answer to a conversation, or to one user message.

        With `constrain_labels` the answer is exactly one of these labels, without JSON around it. Which field of the
        body asks for that is chosen by the server's version, and tried once with a label that no model would say;
        `ignore_eos` and `min_tokens` are then never sent.

        `logprobs` asks for the log-probability of each token and of the `top_logprobs` likeliest in its place. With
        labels it also gives `label_logprobs`: of each label the log-probability that the model, free to say anything,
        answers it and ends. Those are the model's own, before the constraint; they sum to at most 1 as probabilities,
        and to far less where the model would rather say something else. Divide by their sum for the shares among the
        labels. Where they cannot be told the answer stays, and `label_logprobs_failure` says why.

        `label_logprobs = "auto"` takes them from the answer's own log-probabilities where they suffice, and scores the
        other labels; `"exact"` scores each, one short request a label; `"none"` leaves them out. vLLM tells the
        log-probabilities of a constrained answer after the constraint has masked what it does not allow; where the
        trial shows that, `"auto"` scores each label too, and `logprobs` is of the model under the constraint.

        `temperature`, `max_tokens` and `extra_body` are of this call; absent, the client's own or the server's. But a
        `temperature` that nobody gives is 0 with labels: the likeliest label is the answer, each time.

        Raises:
            LabelError: `no_constraint`: the server cannot constrain; `not_a_label`: the answer is no label, as one cut
                off by `max_tokens`.
            RequestError: there is no good answer.
            ValueError: an argument is of another type, there are no messages, labels are empty, twice or with space
                around them, or what is asked for does not go together.
            PromptError: an image or sound cannot be read.
        """
        check_arguments(
            constrain_labels=constrain_labels,
            label_logprobs=label_logprobs,
            logprobs=logprobs,
            top_logprobs=top_logprobs,
            temperature=temperature,
            max_tokens=max_tokens,
        )
        wishes = Wishes(
            max_tokens=max_tokens,
            temperature=temperature,
            logprobs=logprobs,
            top_logprobs=top_logprobs,
            label_logprobs=label_logprobs,
            extra_body=_checked(extra_body),
        )
        async with self._connection() as connection:
            return await chat(connection, messages, constrain_labels, wishes)

    async def ascore(
        self,
        prompt: Messages | None = None,
        completion: str | None = None,
        *,
        messages: Messages | None = None,
        top_logprobs: int = 0,
        extra_body: Mapping[str, Any] | None = None,
    ) -> ScoringResponse:
        """The log-probability of each token of `completion` after a prompt, or after messages.

        A prompt that is a text is sent as it is; messages, given by either name, are rendered by the server's own chat
        template, up to where the answer begins (a text as `messages` is one of the user's). `merged` tells where prompt
        and completion share a token at their border. `top_logprobs`: how many of the likeliest tokens to tell in each
        place. `extra_body`: fields of a chat's body, over the client's own: those that decide how messages are rendered
        do so, and those that do not concern how an answer is generated go with the score (`priority`, `cache_salt`).

        Raises:
            RequestError: there is no good answer.
            ValueError: an argument is of another type, there is no prompt or two, the completion is empty, the prompt
                has no token, or messages hold more than text.
        """
        check_arguments(completion=completion, top_logprobs=top_logprobs)
        if (prompt is None) == (messages is None):
            raise ValueError("score needs either a prompt or messages")
        given: Messages = prompt if prompt is not None else messages_of(messages, "messages")
        fields = self._settings.extra_body | _checked(extra_body)
        async with self._connection() as connection:
            return await score(connection, given, completion, top_logprobs, fields)

    async def atokenize(self, text: str, context: str | None = None, *, add_special_tokens: bool = True) -> Tokenized:
        """The tokens of a text; with a context those that the text adds after it.

        Where a merge crosses the border, `tokens` are those that come in the place of the context's last ones, which
        are `replaced`, and `merged` is true. `add_special_tokens`: let the tokenizer put its own, such as one for the
        begin of the text, before it (or before the context).

        Raises:
            RequestError: there is no good answer.
            ValueError: an argument is of another type.
        """
        check_arguments(text=text, context=context, add_special_tokens=add_special_tokens)
        async with self._connection() as connection:
            return await tokenize(connection, text, context, add_special_tokens)

    async def adetokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids. Raises RequestError, and ValueError where they are none."""
        check_arguments(ids=ids)
        async with self._connection() as connection:
            return await detokenize(connection, ids)

    async def aembed(self, texts: str | Sequence[str]) -> EmbeddingResponse:
        """The vector of each text, in one request.

        Raises:
            RequestError: there is no good answer; a server of a model that generates has no embeddings.
            ValueError: there is no text, or something else.
        """
        check_arguments(texts=texts)
        async with self._connection() as connection:
            return await embed(connection, texts)

    async def amodels(self) -> tuple[ModelInfo, ...]:
        """What the server serves, at least one model. Raises RequestError."""
        async with self._connection() as connection:
            return await connection.models()

    async def asupports_bare_label_constraint(self) -> bool:
        """Whether `constrain_labels` holds on this server: one trial, remembered. Raises RequestError."""
        async with self._connection() as connection:
            return (await constraint_of(connection)).field is not None

    chat = blocking(achat)
    score = blocking(ascore)
    tokenize = blocking(atokenize)
    detokenize = blocking(adetokenize)
    embed = blocking(aembed)
    models = blocking(amodels)

    @property
    def supports_bare_label_constraint(self) -> bool:
        """`asupports_bare_label_constraint`, and wait for it where it is not known yet."""
        if self._known.constraint is not None:
            return self._known.constraint.field is not None
        return _supports(self)

    # --- what is open -------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if loop in self._open:
            raise RuntimeError("this client is open in this event loop already")
        stack = AsyncExitStack()
        self._open[loop] = (await stack.enter_async_context(open_connection(self._settings, self._known)), stack)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _, stack = self._open.pop(asyncio.get_running_loop())
        await stack.aclose()

    def __enter__(self) -> Self:
        if self._entered:
            raise RuntimeError("this client is open already")
        self._loop()
        self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered = False
        self.close()

    def close(self) -> None:
        """End the thread of the synchronous calls, and its connections; a later call starts another. Calls that other
        threads are waiting for are cancelled. What `async with` opened is not touched."""
        with self._starting:
            self._thread = None
            end = self._end_thread
        end()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        """The connections of the running loop, or, where there are none, some for this call."""
        loop, thread = asyncio.get_running_loop(), self._thread
        if thread is not None and thread.loop is loop:
            yield thread.opened
            return
        if held := self._open.get(loop):
            yield held[0]
            return
        async with open_connection(self._settings, self._known) as connection:
            yield connection

    def _loop(self) -> LoopThread[Connection]:
        with self._starting:
            if self._thread is None or not self._thread.alive:
                # What the thread is given must not lead back to the client, which could then never be garbage.
                self._thread = LoopThread(partial(open_connection, self._settings, self._known))
                self._end_thread = weakref.finalize(self, self._thread.close)
            return self._thread


_supports = blocking(VLLMClient.asupports_bare_label_constraint)


def _checked(extra_body: Mapping[str, Any] | None) -> dict[str, Any]:
    check_arguments(extra_body=extra_body)
    fields = dict(extra_body or {})
    if fields.get("stream"):
        raise ValueError("extra_body.stream: the client reads whole answers")
    return fields


class _Item(msgspec.Struct):
    index: int
    embedding: tuple[float, ...]


class _Embeddings(msgspec.Struct):
    data: list[_Item]
    usage: Usage | None = None


async def embed(connection: Connection, texts: str | Sequence[str]) -> EmbeddingResponse:
    """What `VLLMClient.aembed` promises."""
    given = [texts] if isinstance(texts, str) else list(texts)
    if not given:
        raise ValueError("no text to embed")
    url = connection.server.api("embeddings")
    raw = await connection.post(url, {"input": given, "encoding_format": "float"})
    answer = typed(raw, _Embeddings, f"POST {url}")
    items = sorted(answer.data, key=lambda item: item.index)
    if [item.index for item in items] != list(range(len(given))) or not all(item.embedding for item in items):
        words = f"{len(items)} vectors, some of them empty or twice, for {len(given)} texts"
        raise RequestError(f"POST {url}", PROTOCOL, words, 200)
    return EmbeddingResponse(tuple(item.embedding for item in items), answer.usage, raw)
