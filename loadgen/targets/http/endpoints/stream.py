"""Streams whose events have types, as those of `/v1/responses` and `/v1/messages`: what every reader of them does."""

from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from loadgen.measure.outcome import Exchange
from loadgen.targets.http.chunks import ABORT, DISCONNECT, PROTOCOL, SERVER_ERROR, fail, shown
from loadgen.targets.http.error_body import words_of
from loadgen.targets.http.sse import Event
from loadgen.targets.http.texts import keep_text

_MOST_TOKENS: Final = 2**31


class StreamReader(Protocol):
    """Reads one stream's events into its exchange; `targets.chunks.ChunkReader` is one."""

    ended: bool
    """Nothing more is to be read."""

    def take(self, events: list[Event]) -> None:
        """Take events in order."""

    def finish(self, mid_event: bool) -> None:
        """Judge the stream at its end; `mid_event`: the bytes ended within an event."""


class TypedReader:
    """A stream of JSON objects that each say their `type`. What a type means is `read`'s to say: it gets the exchange,
    the object and the instant (ns), and returns whether the answer is whole."""

    def __init__(self, exchange: Exchange, read: Callable[[Exchange, dict[str, Any], int], bool]) -> None:
        self._exchange = exchange
        self._read = read
        self.ended = False

    def take(self, events: list[Event]) -> None:
        """Take events in order. Those after the end are counted and otherwise ignored."""
        self._exchange.events += len(events)
        for event in events:
            if self.ended:
                return
            self._take(event)

    def finish(self, mid_event: bool) -> None:
        """Judge the stream at its end."""
        if not self.ended:
            where = "in the middle of an event" if mid_event else "before its last event"
            words = f"the stream ended {where}, after {self._exchange.events} events"
            fail(self._exchange, DISCONNECT, words)

    def _take(self, event: Event) -> None:
        exchange = self._exchange
        try:
            told = msgspec.json.decode(event.data, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            if event.data.strip() != b"[DONE]":
                self.ended = True
                fail(exchange, PROTOCOL, f"{error}: {shown(event.data)}")
            return
        if told.get("type") == "error" or event.name == b"error" or (told.get("error") and "type" not in told):
            self.ended = True
            fail(exchange, SERVER_ERROR, words_of(told) or "an error without a message")
            return
        self.ended = self._read(exchange, told, event.instant_ns)


def bear(exchange: Exchange, instant_ns: int, text: Any, *, visible: bool) -> None:
    """Note a token-bearing event and its text; `visible`: of the answer itself, and not of the reasoning before it."""
    exchange.chunks_ns.append(instant_ns)
    if visible:
        keep_text(exchange, text)
    if visible and exchange.first_content_ns is None:
        exchange.first_content_ns = instant_ns


def count(exchange: Exchange, usage: Any) -> None:
    """Take over the counts of a `usage` with `input_tokens` and `output_tokens`; what is no count is left out."""
    if not isinstance(usage, dict):
        return
    prompt, output = usage.get("input_tokens"), usage.get("output_tokens")
    if _is_count(prompt):
        exchange.prompt_tokens = prompt
    if _is_count(output):
        exchange.output_tokens = output


def objects_of(value: Any) -> list[dict[str, Any]]:
    """The objects of a JSON list; none where it is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def end(exchange: Exchange, reason: str | None) -> None:
    """Note why the answer ended; where no reason is told the server has given it up."""
    exchange.finish_reason = reason or ABORT
    if exchange.finish_reason == ABORT:
        fail(exchange, ABORT, "the server ended the answer without a reason")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS
