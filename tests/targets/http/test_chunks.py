import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.measure.outcome import Exchange
from loadgen.targets.http.chunks import ChunkReader, read_whole
from loadgen.targets.http.error_body import one_line, words_of_body
from loadgen.targets.http.sse import Event


def chat(delta, finish_reason=None, **more):
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason, **more}]}


def completion(text, finish_reason=None, **more):
    return {"id": "c", "choices": [{"index": 0, "text": text, "finish_reason": finish_reason, **more}]}


def usage(completion_tokens, prompt_tokens=7):
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": 0}


def read(*chunks, mid_event=False):
    """What a reader makes of chunks (objects, or the data of an event as bytes), the i-th read at instant i."""
    exchange = Exchange()
    reader = ChunkReader(exchange)
    for instant, chunk in enumerate(chunks):
        data = chunk if isinstance(chunk, bytes) else json.dumps(chunk, separators=(",", ":")).encode()
        reader.take([Event(data, instant)])
    reader.finish(mid_event)
    return exchange


DONE = b"[DONE]"
CALL = {"index": 0, "id": "call", "type": "function", "function": {"name": "look_up", "arguments": ""}}


@pytest.mark.parametrize(
    ("chunk", "bears"),
    [
        pytest.param(chat({"content": " a"}), True, id="content"),
        pytest.param(chat({"content": ""}), True, id="empty content"),
        pytest.param(chat({"role": "assistant", "content": ""}), False, id="role"),
        pytest.param(chat({"role": "assistant"}), False, id="role without content"),
        pytest.param(chat({"role": "assistant", "content": " a"}), True, id="role and content"),
        pytest.param(chat({"content": None}), False, id="no content"),
        pytest.param(chat({}), False, id="empty delta"),
        pytest.param(chat({}, "stop"), False, id="finish"),
        pytest.param(chat({"content": ""}, "stop"), False, id="finish with empty content"),
        pytest.param(chat({"content": " a"}, "stop"), True, id="finish with content"),
        pytest.param(chat({"content": ""}, "stop", token_ids=[3]), True, id="finish with a token id"),
        pytest.param(chat({"content": ""}, token_ids=[]), False, id="empty token ids"),
        pytest.param(chat({"content": ""}, token_ids=[5]), True, id="token ids with empty content"),
        pytest.param(chat({"reasoning": " a"}), True, id="reasoning"),
        pytest.param(chat({"reasoning_content": " a"}), True, id="reasoning_content"),
        pytest.param(chat({"reasoning_content": "", "content": None}), True, id="empty reasoning"),
        pytest.param(chat({"tool_calls": [CALL]}), True, id="tool call's name"),
        pytest.param(chat({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}), True, id="arguments"),
        pytest.param(chat({"tool_calls": []}), False, id="no tool calls"),
        pytest.param(completion(" a"), True, id="text"),
        pytest.param(completion(""), True, id="empty text"),
        pytest.param(completion("", "length"), False, id="finish with empty text"),
        pytest.param(completion(" a", "length"), True, id="finish with text"),
        pytest.param({"choices": [], "usage": usage(4)}, False, id="usage"),
        pytest.param({"choices": None, "usage": usage(4)}, False, id="usage, null choices"),
        pytest.param({**chat({"content": ""}), "usage": usage(1)}, True, id="running usage, empty content"),
        pytest.param(
            {**chat({"role": "assistant", "content": ""}), "usage": usage(0)}, False, id="running usage, role"
        ),
    ],
)
def test_a_chunk_bears_a_token_or_not(chunk, bears):
    assert list(read(chunk, DONE).chunks_ns) == ([0] if bears else [])


def test_a_summary_of_usage_on_an_empty_chunk_bears_none():
    summary = {**chat({"content": ""}), "usage": usage(2)}
    assert list(read(chat({"content": "a"}), chat({"content": "b"}), summary, DONE).chunks_ns) == [0, 1]


def test_a_stream_tells_instants_usage_and_finish_reason():
    role, token = chat({"role": "assistant", "content": ""}), chat({"content": "a"})
    exchange = read(
        role, token, token, token, chat({"content": "b"}, "length"), {"choices": [], "usage": usage(4)}, DONE
    )
    assert list(exchange.chunks_ns) == [1, 2, 3, 4]
    assert exchange.first_content_ns == 1
    assert (exchange.prompt_tokens, exchange.output_tokens) == (7, 4)
    assert exchange.finish_reason == "length"
    assert exchange.failure is None
    assert exchange.events == 7


def test_content_comes_first_after_reasoning_and_empty_texts():
    chunks = [chat({"reasoning": "a"})] * 3 + [chat({"content": ""})] * 2 + [chat({"content": "a"})] * 2
    exchange = read(*chunks, DONE)
    assert list(exchange.chunks_ns) == [0, 1, 2, 3, 4, 5, 6]
    assert exchange.first_content_ns == 5


def test_running_usage_leaves_the_last_count():
    chunks = [{**chat({"content": "a"}), "usage": usage(count)} for count in (1, 3, 4)]
    exchange = read(*chunks, DONE)
    assert (list(exchange.chunks_ns), exchange.output_tokens) == ([0, 1, 2], 4)


def test_token_ids_are_counted_where_usage_is_absent():
    chunks = [chat({"content": "a"}, token_ids=ids) for ids in ([1], [2, 3], [4])]
    exchange = read(*chunks, DONE)
    assert list(exchange.chunk_tokens) == [1, 2, 1]
    assert exchange.output_tokens == 4


def test_usage_is_believed_before_token_ids():
    exchange = read(chat({"content": "a"}, token_ids=[1]), {"choices": [], "usage": usage(2)}, DONE)
    assert exchange.output_tokens == 2
    assert list(exchange.chunk_tokens) == [1]


def test_token_ids_that_not_every_chunk_has_are_no_count():
    exchange = read(
        chat({"content": "a"}, token_ids=[1]), chat({"content": "b"}), chat({"content": "c"}, token_ids=[1])
    )
    assert exchange.chunk_tokens is None
    assert exchange.output_tokens is None


@pytest.mark.parametrize(
    ("chunks", "failure", "message"),
    [
        ([chat({"content": "a"}), DONE], None, ""),
        ([chat({"content": "a"}, "stop")], None, ""),
        ([chat({"content": "a"})], "disconnect", "the stream ended before its end marker, after 1 events"),
        ([], "disconnect", "the stream ended before its end marker, after 0 events"),
        ([{"error": {"message": "it broke", "code": 500}}, DONE], "server_error", "it broke"),
        ([chat({"content": "a"}), {"error": "it broke"}, DONE], "server_error", "it broke"),
        ([{"object": "error", "message": "it broke", "code": 500}], "server_error", "it broke"),
        ([{"error": {}}, DONE], "server_error", "an error without a message"),
        ([chat({"content": "a"}, "abort"), DONE], "abort", 'the server aborted the request (finish_reason "abort")'),
        ([chat({}, "error"), DONE], "server_error", 'the server gave the request up (finish_reason "error")'),
        ([b"{", DONE], "protocol", "Input data was truncated: {"),
        ([b"<html>", DONE], "protocol", "JSON is malformed: invalid character (byte 0): <html>"),
        ([{"choices": 5}], "protocol", 'Expected `array | null`, got `int` - at `$.choices`: {"choices":5}'),
    ],
)
def test_a_stream_ends_well_or_with_a_kind_of_failure(chunks, failure, message):
    exchange = read(*chunks)
    assert (exchange.failure, exchange.message) == (failure, message)


def test_a_stream_that_ends_within_an_event_says_so():
    exchange = read(chat({"content": "a"}), mid_event=True)
    assert exchange.failure == "disconnect"
    assert exchange.message == "the stream ended in the middle of an event, after 1 events"


def test_an_event_named_error_is_an_error_even_if_it_is_no_json():
    exchange = Exchange()
    ChunkReader(exchange).take([Event(b"overloaded", 0, b"error")])
    assert exchange.failure == "server_error"
    assert exchange.message.endswith("overloaded")


def test_what_follows_the_end_marker_is_ignored():
    assert list(read(chat({"content": "a"}), DONE, chat({"content": "b"})).chunks_ns) == [0]


def test_a_choice_without_a_finish_reason_is_not_finished_by_another_one():
    other = chat({"content": "a"})
    other["choices"][0]["index"] = 1
    assert read(chat({"content": "a"}), other, chat({}, "stop")).failure == "disconnect"


# --- frames: what is told from bytes must be what decoding tells ------------------------------------------------------

texts = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["", '"', "\\", '\\"', "\\\\", "\n\n", "é", "\u2028", "[DONE]", "data: "]),
    st.sampled_from(
        ['"}}]}', '","finish_reason":"stop', '"},"finish_reason":"abort"}]}', '{"error":1}', '"content":"']
    ),
)
deltas = st.one_of(
    st.tuples(st.sampled_from(["content", "content", "content", "reasoning", "reasoning_content"]), texts),
    st.tuples(st.just("role"), st.just("assistant")),
)


@st.composite
def chunks(draw):
    """A chunk, and whether it bears a token by the definition, told from how it was made."""
    extra = draw(st.sampled_from([{}, {}, {}, {"logprobs": None}, {"token_ids": None}, {"token_ids": [5]}]))
    finish = draw(st.sampled_from([None] * 8 + ["stop"]))
    if draw(st.booleans()):
        text = draw(texts)
        return completion(text, finish, **extra), bool(text or extra.get("token_ids") or finish is None)
    name, text = draw(deltas)
    bears = bool(extra.get("token_ids")) or (name != "role" and bool(text or finish is None))
    return chat({name: text}, finish, **extra), bears


@settings(max_examples=400)
@given(
    st.lists(chunks(), max_size=25),
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.booleans(),
)
def test_no_text_of_a_token_misleads_the_reader(made, separators, ascii_only):
    data = [json.dumps(chunk, separators=separators, ensure_ascii=ascii_only).encode() for chunk, _ in made]
    exchange = read(*data, DONE)
    assert list(exchange.chunks_ns) == [at for at, (_, bears) in enumerate(made) if bears]
    assert exchange.failure is None
    visible = [
        at
        for at, (chunk, _) in enumerate(made)
        if (choice := chunk["choices"][0]).get("text") or choice.get("delta", {}).get("content")
    ]
    assert exchange.first_content_ns == (visible[0] if visible else None)
    finishes = [reason for chunk, _ in made if (reason := chunk["choices"][0]["finish_reason"])]
    assert exchange.finish_reason == (finishes[-1] if finishes else None)


def undeceived(*chunks):
    """What a reader that decodes every event makes of the chunks: a differing field keeps it from learning a frame."""
    odd = [{**chat({"content": "a"}), "usage": None, "odd": at} for at in range(9)]
    exchange = Exchange()
    reader = ChunkReader(exchange)
    reader.take([Event(json.dumps(chunk).encode(), 0) for chunk in odd])
    del exchange.chunks_ns[:]
    exchange.events, exchange.first_content_ns = 0, None
    for instant, chunk in enumerate(chunks):
        reader.take([Event(chunk, instant)])
    reader.finish(False)
    return exchange


PLAIN = json.dumps(chat({"content": "abc"}), separators=(",", ":")).encode()
BEFORE, AFTER = PLAIN.split(b"abc")
escapes = st.sampled_from([b"a", b'"', b"\\", b'\\"', b"\\\\", b"\\u00e9", b"\\u", b"\\q"])
ways_out = [
    b'","x":"',
    b'"},"finish_reason":"stop"},{"delta":{"content":"',
    b'"},"finish_reason":null},{"delta":{"content":"',
]
insides = st.one_of(escapes, st.sampled_from([*ways_out, AFTER + BEFORE, AFTER + b"," + BEFORE]))


@settings(max_examples=400)
@given(st.lists(insides, max_size=4).map(b"".join), st.integers(0, 2))
def test_what_looks_like_a_frame_is_read_as_decoding_reads_it(inside, overlap):
    odd = BEFORE + inside + AFTER[overlap:]
    assert read(*[PLAIN] * 4, odd, DONE) == undeceived(*[PLAIN] * 4, odd, DONE)


def test_a_stream_whose_chunks_all_differ_is_read_all_the_same():
    chunks = [{**chat({"content": "a"}), "created": at} for at in range(50)]
    assert len(read(*chunks, DONE).chunks_ns) == 50


# --- whole answers, and words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "failure", "tokens", "finish_reason"),
    [
        ({"choices": [{"finish_reason": "length"}], "usage": usage(5)}, None, 5, "length"),
        ({"choices": [{"finish_reason": "stop", "token_ids": [1, 2]}]}, None, 2, "stop"),
        ({"choices": [{"finish_reason": "stop"}]}, None, None, "stop"),
        ({"choices": [{"finish_reason": "abort"}], "usage": usage(5)}, "abort", 5, "abort"),
        ({"error": {"message": "no"}}, "server_error", None, None),
        ({"choices": []}, "protocol", None, None),
        ([], "protocol", None, None),
    ],
)
def test_a_whole_answer_tells_usage_finish_reason_and_failure(body, failure, tokens, finish_reason):
    exchange = Exchange()
    read_whole(json.dumps(body).encode(), exchange)
    assert (exchange.failure, exchange.output_tokens, exchange.finish_reason) == (failure, tokens, finish_reason)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "no such model", "param": "model"}}', "no such model"),
        (b'{"error": {"message": "not permitted", "param": "min_tokens"}}', "not permitted (min_tokens)"),
        (b'{"error": "Unauthorized"}', "Unauthorized"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"detail": [{"loc": ["body", "n"], "msg": "too many"}, {"msg": "odd"}]}', "too many (body.n); odd"),
        (b'{"object": "error", "message": "no"}', "no"),
        (b'{"code": 5}', '{"code":5}'),
        (b"{}", ""),
        (b"", ""),
        (b"null", ""),
        (b"plain\n  text", "plain text"),
        (b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>", "502 Bad Gateway"),
        (b"<html><style>p {}</style><h1>Busy</h1><p>Come back</p></html>", "Busy Come back"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_the_words_of_an_error_body(body, words):
    assert words_of_body(body) == words


def test_long_words_are_cut():
    assert one_line("ab " * 10, limit=5) == "ab a…"
