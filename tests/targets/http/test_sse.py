from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.targets.http.sse import Event, EventParser


def parsed(*reads: bytes) -> list[tuple[bytes, bytes]]:
    parser = EventParser()
    return [(event.name, event.data) for read in reads for event in parser.feed(read, 0)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        pytest.param(b"data: a\n\n", [b"a"], id="LF"),
        pytest.param(b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"], id="CRLF"),
        pytest.param(b"data: a\r\rdata: b\r\r", [b"a", b"b"], id="CR"),
        pytest.param(b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"], id="mixed line ends"),
        pytest.param(b"data:a\n\n", [b"a"], id="no space"),
        pytest.param(b"data:  a\n\n", [b" a"], id="only one space is dropped"),
        pytest.param(b"data: a\ndata: b\n\n", [b"a\nb"], id="several lines"),
        pytest.param(b"data\n\n", [b""], id="field without a colon"),
        pytest.param(b"data: \n\n", [b""], id="empty data"),
        pytest.param(b": ping\n\ndata: a\n\n", [b"a"], id="comment"),
        pytest.param(b": ping\ndata: a\n\n", [b"a"], id="comment within an event"),
        pytest.param(b"id: 7\nretry: 10\nother: x\ndata: a\n\n", [b"a"], id="other fields"),
        pytest.param(b"event: ping\n\ndata: a\n\n", [b"a"], id="event without data"),
        pytest.param(b"\n\n\n\ndata: a\n\n\n\n\ndata: b\n\n", [b"a", b"b"], id="extra empty lines"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", [b"a"], id="byte order mark"),
        pytest.param(b"data: a\n\ndata: b\n\ndata: c\n\n", [b"a", b"b", b"c"], id="several events a read"),
        pytest.param(b"data: a\n\ndata: b\n", [b"a"], id="the last is not complete"),
        pytest.param(b'data: {"data: x"}\n\n', [b'{"data: x"}'], id="data that look like a field"),
        pytest.param(b"", [], id="nothing"),
    ],
)
def test_a_stream_gives_its_events(stream, events):
    assert [data for _, data in parsed(stream)] == events


def test_an_event_carries_its_name():
    assert parsed(b"event: error\ndata: a\n\ndata: b\n\n") == [(b"error", b"a"), (b"", b"b")]


def test_an_event_carries_the_instant_of_the_read_that_completed_it():
    parser = EventParser()
    assert parser.feed(b"data: a\n", 1) == []
    assert parser.feed(b"\ndata: b\n\ndata", 2) == [Event(b"a", 2), Event(b"b", 2)]
    assert parser.feed(b": c\n\n", 3) == [Event(b"c", 3)]


def test_bytes_of_an_incomplete_event_are_noticed():
    parser = EventParser()
    parser.feed(b"data: a\n\n\n", 0)
    assert not parser.mid_event
    parser.feed(b"da", 0)
    assert parser.mid_event


def by_the_standard(stream: bytes) -> list[tuple[bytes, bytes]]:
    """The standard's algorithm, line by line, over the whole stream."""
    events, name, lines = [], b"", []
    text = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for line in text.split(b"\n")[:-1]:
        field, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if not line:
            if lines:
                events.append((name, b"\n".join(lines)))
            name, lines = b"", []
        elif field == b"data":
            lines.append(value)
        elif field == b"event":
            name = value
    return events


line_ends = st.sampled_from([b"\n", b"\n\n", b"\r", b"\r\n", b"\r\n\r\n"])
words = st.sampled_from([b"data: ", b"data:", b"data", b"event: e", b": c", b"x", b'{"a"}', b" "])
marks = st.sampled_from([b"\xef\xbb\xbf", b"\xef"])
pieces = st.one_of(line_ends, words, marks)


@given(st.lists(pieces, max_size=30).map(b"".join), st.data())
def test_any_split_of_any_bytes_gives_the_events_of_the_standard(stream, data):
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    bounds = sorted({0, len(stream), *cuts})
    reads = [stream[start:end] for start, end in pairwise(bounds)]
    assert parsed(*reads) == by_the_standard(stream)


@given(st.lists(pieces, max_size=20).map(b"".join))
def test_single_bytes_give_the_events_of_the_standard(stream):
    assert parsed(*(stream[at : at + 1] for at in range(len(stream)))) == by_the_standard(stream)
