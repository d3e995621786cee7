"""Requests from a file of JSON lines: each says what a row of the file says, as it stands there."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from loadgen import profile
from loadgen.errors import LoadgenError
from loadgen.profile.decoding import DecodingError, TokenCount, decode, show
from loadgen.profile.workload import are_labels
from loadgen.workload.hashing import Purpose, fraction, hash64, hash_key
from loadgen.workload.lengths import inverse_cdf
from loadgen.workload.request import Message, Request, Tokenization


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message of a row; its content is text."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the file. What does not concern the kind of workload is passed over."""

    messages: tuple[Turn, ...] | None = None
    """A conversation; either this or `prompt` is given."""
    prompt: str | None = None
    """A text: the one user message, where the kind is one of conversations."""
    labels: tuple[str, ...] | None = None
    """Of a choice: the answers allowed to this row; None: the workload's."""
    expected: str | None = None
    """Of a choice: the label that is right."""
    output_tokens: TokenCount | None = None
    """None: the workload's."""


_DECODER: Final = msgspec.json.Decoder(Row)
_PLAIN: Final = msgspec.json.Decoder()


class DatasetWorkload:
    """The rows of the file in their order, or in one that is shuffled by the seed, over and over.

    A pure function of (seed, index) and the file. The text of a row is not changed: a row that comes again is the same
    again. A length that a row does not give is drawn as for synthetic requests.
    """

    def __init__(self, workload: profile.Workload, tokenization: Tokenization, nonce: int) -> None:
        """Raises LoadgenError where the file cannot be read."""
        self._rows = read_rows(workload)
        self._places = places(workload, len(self._rows))
        self._kind = workload.kind
        self._system = () if workload.system is None else (Message("system", workload.system),)
        self._output_length = None if workload.output_tokens is None else inverse_cdf(workload.output_tokens)
        self._output_length_key = hash_key(workload.seed, Purpose.OUTPUT_LENGTH)

    def request(self, index: int) -> Request:
        """Request `index`, of row `index` modulo the number of rows. How many tokens its prompt has is not known."""
        turn, number = divmod(index, len(self._rows))
        row, again = self._rows[self._places(number)], turn > 0
        if self._kind == "embed":
            return Request(index, inputs=(row.prompt or "",), again=again)
        messages = self._messages(row) if profile.KINDS[self._kind].conversation else None
        prompt = row.prompt if messages is None else None
        if self._kind == "choice":
            return Request(index, messages, labels=row.labels, expected=row.expected, again=again)
        length = self._length(row, index)
        if self._kind == "messages":
            return Request(index, messages, most_output_tokens=length, again=again)
        asked = length if profile.KINDS[self._kind].lengths_asked else None
        return Request(index, messages, prompt, output_tokens=asked, again=again)

    def _messages(self, row: Row) -> tuple[Message, ...]:
        """The conversation, after the workload's system message unless it begins with one of its own."""
        if row.messages is None:
            return (*self._system, Message("user", row.prompt or ""))
        own = tuple(Message(turn.role, turn.content) for turn in row.messages)
        return own if own[0].role == "system" else self._system + own

    def _length(self, row: Row, index: int) -> int | None:
        if row.output_tokens is not None or self._output_length is None:
            return row.output_tokens
        return self._output_length(fraction(self._output_length_key, index))


def read_rows(workload: profile.Workload) -> tuple[Row, ...]:
    """The rows of a workload's file, each fit for its kind, and labels and right answers as `Request` has them.

    Empty lines are passed over.

    Raises:
        LoadgenError: in one line, with the line's number: the file or a row cannot be used.
    """
    assert workload.dataset is not None
    path = workload.dataset.path
    rows = []
    try:
        with Path(path).open("rb") as lines:
            for number, line in enumerate(lines, 1):
                text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if text.strip():
                    rows.append(_row(text, workload, f"{path}, line {number}"))
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise LoadgenError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not rows:
        raise LoadgenError(f"{path}: has no rows")
    return tuple(rows)


def places(workload: profile.Workload, rows: int) -> Callable[[int], int]:
    """From the number of a request within a round to that of its row, each row once."""
    if workload.dataset is None or workload.dataset.order == "sequential":
        return lambda number: number
    key = hash_key(workload.seed, Purpose.ROWS)
    return sorted(range(rows), key=lambda row: hash64(key, row)).__getitem__


def _row(line: bytes, workload: profile.Workload, where: str) -> Row:
    try:
        row = _DECODER.decode(line)
    except msgspec.ValidationError as error:
        raise LoadgenError(f"{where}: {_in_words(line, error)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LoadgenError(f"{where}: not JSON: {error}") from None
    if (row.messages is None) == (row.prompt is None):
        raise LoadgenError(f"{where}: needs either messages or prompt")
    if row.prompt is None and not profile.KINDS[workload.kind].conversation:
        raise LoadgenError(f'{where}: messages: kind = "{workload.kind}" needs prompt')
    if not (row.prompt or row.messages):
        raise LoadgenError(f"{where}: {'prompt' if row.messages is None else 'messages'}: empty")
    return _labelled(row, workload, where) if workload.kind == "choice" else row


def _labelled(row: Row, workload: profile.Workload, where: str) -> Row:
    """The row of a choice, its right answer as it stands among the labels."""
    labels = workload.labels if row.labels is None else row.labels
    if not are_labels(labels):
        missing = " (workload.labels has none)" if row.labels is None else ""
        raise LoadgenError(f"{where}: needs labels, at least two, different and not empty{missing}")
    if row.expected is None:
        return row
    expected = next((label for label in labels if label.strip() == row.expected.strip()), None)
    if expected is None:
        raise LoadgenError(f"{where}: expected = {show(row.expected)}: none of the labels")
    return msgspec.structs.replace(row, expected=expected)


def _in_words(line: bytes, error: msgspec.ValidationError) -> str:
    """The first fault of a row, as those of a profile are told; where there are none of that kind, the decoder's."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            decode(Row, _PLAIN.decode(line))
        except DecodingError as told:
            return told.faults[0].removeprefix(": ")
    return str(error)
