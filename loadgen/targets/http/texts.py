"""What answers say, kept where somebody wants it (`Exchange.texts`). Pure: no I/O."""

from typing import Any, Final

import msgspec

from loadgen.measure.outcome import Exchange


class _Choice(msgspec.Struct):
    """A choice of a whole answer: `message` is of chat, `text` of completions."""

    index: int = 0
    message: Any = None
    text: Any = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]


_DECODER: Final = msgspec.json.Decoder(_Answer)


def keep_text(exchange: Exchange, text: Any) -> None:
    """Keep a piece of an answer's text where texts are kept."""
    if exchange.texts is not None and isinstance(text, str) and text:
        exchange.texts.append(text)


def keep_whole(exchange: Exchange, body: bytes) -> None:
    """Keep what the first choice of a whole answer says. It is decoded once more, and only where texts are kept: of its
    message nothing else is wanted."""
    if exchange.texts is None:
        return
    for choice in _DECODER.decode(body).choices:
        if choice.index == 0:
            keep_text(exchange, choice.text)
            keep_text(exchange, choice.message.get("content") if isinstance(choice.message, dict) else None)
