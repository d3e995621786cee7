"""Server-sent events: bytes in, events out. It knows neither the socket they came from nor what their data mean."""

from typing import Final, NamedTuple

_BOM: Final = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event that carries data."""

    data: bytes
    """Its `data:` lines, joined by a line feed."""
    instant_ns: int
    """The instant of the read that completed it (monotonic ns)."""
    name: bytes = b""
    """Its `event:` field; empty where it has none."""


class EventParser:
    """The parser of one stream. Any split of the bytes over reads gives the same events.

    Lines end with LF, CRLF or CR, mixed as they like; a byte order mark at the start, comments, `id:`, `retry:` and
    unknown fields are skipped. As the standard has it, what no blank line completed is no event.
    """

    def __init__(self) -> None:
        self._pending = b""
        """The bytes of an event that is not complete yet, with line ends made LF."""
        self._at_start = True
        self._after_cr = False

    @property
    def mid_event(self) -> bool:
        """Whether bytes are held that belong to an event not yet complete."""
        return bool(self._pending.strip(b"\n"))

    @property
    def pending_bytes(self) -> int:
        """How many bytes are held of an event that is not yet complete."""
        return len(self._pending)

    def feed(self, data: bytes, instant_ns: int) -> list[Event]:
        """Take one read's bytes and return the events that it completed, in order, each with this read's instant."""
        if self._at_start:
            data = self._without_bom(data)
        if self._after_cr or b"\r" in data:
            data = self._with_line_feeds(data)
        if self._pending:
            data = self._pending + data
        events = []
        # Once line ends are LF, an empty line (two LFs in a row) is what separates events.
        *blocks, self._pending = data.split(b"\n\n")
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append(Event(block[6:], instant_ns))
            elif (event := _read_block(block, instant_ns)) is not None:
                events.append(event)
        return events

    def _without_bom(self, data: bytes) -> bytes:
        data = self._pending + data
        self._pending = b""
        if len(data) < len(_BOM) and _BOM.startswith(data):  # too early to tell; nothing else starts like this
            self._pending = data
            return b""
        self._at_start = False
        return data.removeprefix(_BOM)

    def _with_line_feeds(self, data: bytes) -> bytes:
        if not data:
            return data
        if self._after_cr and data.startswith(b"\n"):  # the second half of a CRLF whose first half ended the line
            data = data[1:]
            self._after_cr = False
            if not data:
                return data
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _read_block(block: bytes, instant_ns: int) -> Event | None:
    """Read the lines between two empty lines; None where they carry no data."""
    lines = []
    name = b""
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            lines.append(value)
        elif field == b"event":
            name = value
    return Event(b"\n".join(lines), instant_ns, name) if lines else None
