"""What the events of a streamed answer and the body of a whole one mean, written into an exchange. Pure: no I/O.

Most events of a stream differ in nothing but one text. Once a chunk was decoded, the bytes before and after its text
are kept as a frame, and a later event in the same frame is known to bear a token by comparing bytes. That is exact and
no guess: where what stands in the frame is the inside of one JSON string, nothing else of the chunk can differ.
"""

import re
from typing import Annotated, Any, Final, TypeVar

import msgspec

from loadgen.measure.outcome import Exchange
from loadgen.targets.http.error_body import one_line, words_of
from loadgen.targets.http.sse import Event
from loadgen.targets.http.texts import keep_text, keep_whole

PROTOCOL: Final = "protocol"
SERVER_ERROR: Final = "server_error"
DISCONNECT: Final = "disconnect"
ABORT: Final = "abort"

_TEXTS: Final = ("content", "text", "reasoning", "reasoning_content")
_VISIBLE: Final = ("content", "text")
_TEXT_STARTS: Final = {name: re.compile(rb'"%s"\s*:\s*"' % name.encode()) for name in _TEXTS}
_STRING: Final = re.compile(rb'[^"\\]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\]*)*')
"""The inside of one JSON string."""
_MAX_LEARNT: Final = 4
"""How many frames a stream may show before its events are all decoded: where each differs, learning is a waste."""


class _Function(msgspec.Struct):
    name: Any = None
    arguments: Any = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Delta(msgspec.Struct):
    role: Any = None
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    """A choice of either API, streamed or not: `delta` is of chat, `text` of completions."""

    index: int = 0
    delta: _Delta | None = None
    text: Any = None
    finish_reason: str | None = None
    token_ids: list[Any] | None = None


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
"""A number of tokens. What a server says beyond that is no count, and would spoil every sum it enters."""


class _Usage(msgspec.Struct):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: Any = None
    message: Any = None
    """Of an error as older servers put it: `{"object": "error", "message": ...}`."""


_DECODER: Final = msgspec.json.Decoder(_Chunk)


class ChunkReader:
    """Reads one stream's events into its exchange: instants of tokens, usage, finish reason and failure."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.ended = False
        """Nothing more is to be read: the end marker came, or what came cannot be understood."""
        self._ids_seen = 0
        self._ids_complete = True
        """Whether every token-bearing chunk so far told its token ids."""
        self._usage_tokens: int | None = None
        self._unfinished: set[int] = set()
        """The choices seen that have no finish reason yet."""
        self._frame: tuple[bytes, bytes] | None = None
        self._learnt = 0

    def take(self, events: list[Event]) -> None:
        """Take events in order. Those after the end marker are counted and otherwise ignored."""
        exchange = self._exchange
        exchange.events += len(events)
        for event in events:
            if self.ended:
                return
            if self._is_framed(event.data):
                exchange.chunks_ns.append(event.instant_ns)
            else:
                self._read(event)

    def finish(self, mid_event: bool) -> None:
        """Judge the stream at its end, which the end marker or the end of the bytes was.

        `mid_event`: the bytes ended within an event.
        """
        exchange = self._exchange
        if exchange.failure is not None:
            return
        if not self.ended and (exchange.finish_reason is None or self._unfinished):
            where = "in the middle of an event" if mid_event else "before its end marker"
            _fail(exchange, DISCONNECT, f"the stream ended {where}, after {exchange.events} events")
        _judge_finish(exchange)

    def _is_framed(self, data: bytes) -> bool:
        """Whether an event is an ordinary token-bearing chunk, told without decoding it. False: decode it."""
        if self._frame is None:
            return False
        head, tail = self._frame
        end = len(data) - len(tail)
        return (
            data.startswith(head)
            and data.endswith(tail)
            and _STRING.fullmatch(data, len(head), end) is not None  # nor does it match where head and tail overlap
        )

    def _read(self, event: Event) -> None:
        exchange = self._exchange
        if event.data.strip() == b"[DONE]":
            self.ended = True
            return
        try:
            chunk = _DECODER.decode(event.data)
        except msgspec.MsgspecError as error:
            self.ended = event.name != b"error"
            kind = PROTOCOL if self.ended else SERVER_ERROR
            _fail(exchange, kind, f"{error}: {event.data[:200].decode(errors='replace')}")
            return
        if chunk.error is not None or chunk.object == "error" or event.name == b"error":
            _fail(exchange, SERVER_ERROR, words_of(chunk.error or chunk.message) or "an error without a message")
            return
        texts: list[tuple[str, Any]] = []
        bears = False
        for choice in chunk.choices or ():
            own = _texts(choice)
            bears = self._bears_token(choice, own, chunk.usage) or bears
            texts += own
        if bears:
            self._bear(event, chunk, texts)
        if exchange.texts is not None:
            for choice in chunk.choices or ():
                _keep_texts(exchange, choice)
        for choice in chunk.choices or ():
            self._note_finish(choice)
        if chunk.usage is not None:
            self._count(chunk.usage)

    def _bears_token(self, choice: _Choice, texts: list[tuple[str, Any]], usage: _Usage | None) -> bool:
        """Whether a choice, whose texts are these, carries output by the definition in docs/metrics.md."""
        if choice.token_ids:
            return True
        for _, text in texts:
            if text:
                return True
        calls = (choice.delta.tool_calls if choice.delta else None) or ()
        if any(call.function and (call.function.name or call.function.arguments) for call in calls):
            return True
        # What is left are empty texts: a token's (its characters are not complete yet) or padding beside other news.
        if choice.finish_reason or (choice.delta and choice.delta.role) or choice.token_ids is not None:
            return False
        if not (texts or calls):
            return False
        return usage is None or self._grew(usage)

    def _grew(self, usage: _Usage) -> bool:
        """Whether usage on a chunk is a running count that this chunk advanced, and not a summary at the end."""
        if usage.completion_tokens is None:
            return False
        if self._usage_tokens is None:
            return not self._exchange.chunks_ns and usage.completion_tokens > 0
        return usage.completion_tokens > self._usage_tokens

    def _bear(self, event: Event, chunk: _Chunk, texts: list[tuple[str, Any]]) -> None:
        exchange = self._exchange
        exchange.chunks_ns.append(event.instant_ns)
        if exchange.first_content_ns is None and any(text and name in _VISIBLE for name, text in texts):
            exchange.first_content_ns = event.instant_ns
        ids = 0
        for choice in chunk.choices or ():
            if choice.token_ids:
                ids += len(choice.token_ids)
        self._count_ids(ids)
        # Not for the first chunk: many answers have no other.
        if not ids and chunk.usage is None and len(texts) == 1 and len(exchange.chunks_ns) > 1:
            self._learn_frame(event.data, texts[0][0])

    def _note_finish(self, choice: _Choice) -> None:
        if choice.finish_reason:
            self._unfinished.discard(choice.index)
            _note_finish(self._exchange, choice)
        else:
            self._unfinished.add(choice.index)

    def _count_ids(self, ids: int) -> None:
        exchange = self._exchange
        self._ids_complete = self._ids_complete and ids > 0
        if self._ids_complete:
            if exchange.chunk_tokens is None:
                exchange.chunk_tokens = exchange.chunks_ns[:0]
            exchange.chunk_tokens.append(ids)
            self._ids_seen += ids
        else:
            exchange.chunk_tokens = None
        if self._usage_tokens is None:
            exchange.output_tokens = self._ids_seen if self._ids_complete else None

    def _count(self, usage: _Usage) -> None:
        exchange = self._exchange
        if usage.prompt_tokens is not None:
            exchange.prompt_tokens = usage.prompt_tokens
        if usage.completion_tokens is not None:
            self._usage_tokens = exchange.output_tokens = usage.completion_tokens

    def _learn_frame(self, data: bytes, name: str) -> None:
        """Keep the bytes around the text `name` of a chunk, where putting another text there changes that text only."""
        # Framed events are not decoded, and so would be missing where texts are kept.
        if self._learnt >= _MAX_LEARNT or self._exchange.texts is not None:
            return
        # Framed events do not look for visible content, so none is learnt before the first was seen.
        if name in _VISIBLE and self._exchange.first_content_ns is None:
            return
        found = _TEXT_STARTS[name].search(data)
        end = data.find(b'"', found.end()) if found else -1
        if found is None or end < 0:
            return
        self._learnt += 1
        head, tail = data[: found.end()], data[end:]
        if _is_plain(head + b"x" + tail, name, "x"):
            self._frame = (head, tail)


def read_whole(body: bytes, exchange: Exchange) -> None:
    """Read an answer that was not streamed: usage, finish reason, failure."""
    answer = _decode_whole(body, exchange)
    if answer is None:
        return
    if not answer.choices:
        _fail(exchange, PROTOCOL, f"an answer without choices: {body[:200].decode(errors='replace')}")
        return
    if all(choice.token_ids is not None for choice in answer.choices):
        exchange.output_tokens = sum(len(choice.token_ids or ()) for choice in answer.choices)
    if answer.usage is not None:
        exchange.prompt_tokens = answer.usage.prompt_tokens
        if answer.usage.completion_tokens is not None:
            exchange.output_tokens = answer.usage.completion_tokens
    for choice in answer.choices:
        _note_finish(exchange, choice)
    _judge_finish(exchange)
    keep_whole(exchange, body)


def read_other(body: bytes, exchange: Exchange) -> None:
    """Read an answer that generates nothing, such as that of `/tokenize`: usage, where there is some, and failure."""
    answer = _decode_whole(body, exchange)
    if answer is not None and answer.usage is not None:
        exchange.prompt_tokens = answer.usage.prompt_tokens


def _decode_whole(body: bytes, exchange: Exchange) -> _Chunk | None:
    """A whole answer; None, its failure noted, where it cannot be read or is an error for all its good status."""
    try:
        answer = _DECODER.decode(body)
    except msgspec.MsgspecError as error:
        _fail(exchange, PROTOCOL, f"{error}: {body[:200].decode(errors='replace')}")
        return None
    if answer.error is not None or answer.object == "error":
        _fail(exchange, SERVER_ERROR, words_of(answer.error or answer.message) or "an error without a message")
        return None
    return answer


def _texts(choice: _Choice) -> list[tuple[str, Any]]:
    """The texts that a choice carries, empty ones included, each with its field's name."""
    delta = choice.delta
    if delta is None:
        return [] if choice.text is None else [("text", choice.text)]
    texts = []
    if delta.content is not None:
        texts.append(("content", delta.content))
    if delta.reasoning is not None:
        texts.append(("reasoning", delta.reasoning))
    if delta.reasoning_content is not None:
        texts.append(("reasoning_content", delta.reasoning_content))
    return texts


def _keep_texts(exchange: Exchange, choice: _Choice) -> None:
    """Keep the visible text of the first choice: those of several would be mixed."""
    if choice.index == 0:
        for name, text in _texts(choice):
            if name in _VISIBLE:
                keep_text(exchange, text)


def _is_plain(data: bytes, name: str, text: str) -> bool:
    """Whether a chunk is nothing but one choice with this one text."""
    try:
        chunk = _DECODER.decode(data)
    except msgspec.MsgspecError:
        return False
    if chunk.usage is not None or chunk.error is not None or chunk.object == "error" or not chunk.choices:
        return False
    choice = chunk.choices[0]
    delta = choice.delta
    other_news = choice.finish_reason or choice.token_ids is not None or (delta and (delta.role or delta.tool_calls))
    return len(chunk.choices) == 1 and not other_news and _texts(choice) == [(name, text)]


def _note_finish(exchange: Exchange, choice: _Choice) -> None:
    # With several choices one that was aborted is what counts.
    if choice.finish_reason and exchange.finish_reason != ABORT:
        exchange.finish_reason = choice.finish_reason


def _judge_finish(exchange: Exchange) -> None:
    if exchange.finish_reason == ABORT:
        _fail(exchange, ABORT, 'the server aborted the request (finish_reason "abort")')
    elif exchange.finish_reason == "error":
        _fail(exchange, SERVER_ERROR, 'the server gave the request up (finish_reason "error")')


def _fail(exchange: Exchange, kind: str, message: str) -> None:
    if exchange.failure is None:
        exchange.failure = kind
        exchange.message = one_line(message)


T = TypeVar("T")


_SHOWN_BYTES = 200


def decode_answer(body: bytes, decoder: msgspec.json.Decoder[T], exchange: Exchange) -> T | None:
    """The answer; None, its failure noted as `protocol`, where it has another shape."""
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        fail(exchange, PROTOCOL, f"{error}: {shown(body)}")
        return None


def fail(exchange: Exchange, kind: str, message: str) -> None:
    """Note a failure, unless one is noted already."""
    if exchange.failure is None:
        exchange.failure = kind
        exchange.message = one_line(message)


def shown(body: bytes) -> str:
    """The beginning of a body, for a message."""
    return body[:_SHOWN_BYTES].decode(errors="replace")
