"""`/v1/responses` and `/v1/messages`: whole answers, event streams and errors in their own shapes."""

import json

import pytest

from loadgen.sim.api.messages import MessageAnswer, read_message
from loadgen.sim.config import SimConfig, SimFaults
from tests.sim.api.serving import CHAT, LENGTH, named_events, post, serving

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
RESPONSE = {"model": "sim", "input": "hello there", "max_output_tokens": 5}
MESSAGE = {"model": "sim", "messages": CHAT["messages"], "max_tokens": 5}


@pytest.fixture
def anyio_backend():
    return "asyncio"


pytestmark = pytest.mark.anyio


async def _chat_text(session, **changes) -> str:
    _, answer = await post(session, "/v1/chat/completions", CHAT | changes)
    return answer["choices"][0]["message"]["content"]


async def test_a_response_says_what_the_chat_says():
    async with serving() as (_, session):
        text = await _chat_text(session, **LENGTH)
        status, answer = await post(session, RESPONSES, RESPONSE | LENGTH)
    assert status == 200
    assert answer["output"][0]["content"][0] == {
        "annotations": [],
        "text": text,
        "type": "output_text",
        "logprobs": None,
    }
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    usage = answer["usage"]
    # Ten prompt tokens: 4 + 2 words, and 4 for the prompt to the assistant.
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (10, 5, 15)


async def test_a_response_that_ends_of_its_own_accord_is_completed():
    async with serving() as (_, session):
        _, answer = await post(session, RESPONSES, RESPONSE)
    assert (answer["status"], answer["incomplete_details"]) == ("completed", None)


@pytest.mark.parametrize(
    "given",
    [
        [{"role": "user", "content": "hello there"}],
        [{"role": "user", "content": [{"type": "input_text", "text": "hello there"}]}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello there"}]}],
    ],
)
async def test_the_input_may_be_a_text_or_items(given):
    async with serving() as (_, session):
        answers = [(await post(session, RESPONSES, RESPONSE | {"input": one}))[1] for one in ("hello there", given)]
    assert answers[0]["output"][0]["content"] == answers[1]["output"][0]["content"]


async def test_instructions_are_the_systems_message():
    messages = [{"role": "system", "content": "be brief"}, *CHAT["messages"]]
    async with serving() as (_, session):
        text = await _chat_text(session, messages=messages)
        _, answer = await post(session, RESPONSES, RESPONSE | {"instructions": "be brief"})
    assert answer["output"][0]["content"][0]["text"] == text
    assert answer["instructions"] == "be brief"


async def test_a_responses_stream_opens_tells_and_closes_in_order():
    async with serving() as (_, session):
        _, whole = await post(session, RESPONSES, RESPONSE | LENGTH)
        events = await named_events(session, RESPONSES, RESPONSE | LENGTH)
    assert [name for name, _ in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 5,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert all(data["type"] == name for name, data in events)
    text = "".join(data["delta"] for name, data in events if name == "response.output_text.delta")
    last = events[-1][1]["response"]
    assert text == whole["output"][0]["content"][0]["text"] == last["output"][0]["content"][0]["text"]
    assert (last["status"], last["usage"]) == ("incomplete", whole["usage"])


async def test_a_response_may_be_a_choice():
    choice = {"structured_outputs": {"choice": ["yes", "no"]}}
    async with serving() as (_, session):
        _, answer = await post(session, RESPONSES, RESPONSE | choice)
        events = await named_events(session, RESPONSES, RESPONSE | choice)
    assert answer["output"][0]["content"][0]["text"] in ("yes", "no")
    assert (answer["status"], answer["usage"]["output_tokens"]) == ("completed", 2)
    # The label's end shows nothing, and is no delta.
    assert [name for name, _ in events].count("response.output_text.delta") == 1


async def test_an_aborted_response_is_cancelled():
    async with serving(faults=SimFaults(abort_rate=1.0)) as (_, session):
        _, answer = await post(session, RESPONSES, RESPONSE | LENGTH)
    assert answer["status"] == "cancelled"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (RESPONSE | {"model": "other"}, 404),
        ({"model": "sim"}, 400),
        (RESPONSE | {"input": []}, 400),
        (RESPONSE | {"max_output_tokens": 0}, 400),
    ],
)
async def test_a_response_that_makes_no_sense_is_refused(body, status):
    async with serving() as (_, session):
        answered, answer = await post(session, RESPONSES, body)
    assert (answered, answer["error"]["code"]) == (status, status)


async def test_a_message_says_what_the_chat_says():
    system = {"role": "system", "content": "be brief"}
    async with serving() as (_, session):
        text = await _chat_text(session)
        briefly = await _chat_text(session, messages=[system, *CHAT["messages"]])
        status, answer = await post(session, MESSAGES, MESSAGE)
        _, brief = await post(session, MESSAGES, MESSAGE | {"system": "be brief"})
    assert status == 200
    assert answer["content"] == [{"type": "text", "text": text}]
    assert (answer["type"], answer["role"], answer["stop_reason"]) == ("message", "assistant", "end_turn")
    assert brief["content"][0]["text"] == briefly


async def test_a_messages_stream_opens_tells_and_closes_in_order():
    async with serving() as (_, session):
        _, whole = await post(session, MESSAGES, MESSAGE)
        events = await named_events(session, MESSAGES, MESSAGE)
    output = whole["usage"]["output_tokens"]
    assert [name for name, _ in events] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * output,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert all(data["type"] == name for name, data in events)
    text = "".join(data["delta"]["text"] for name, data in events if name == "content_block_delta")
    assert text == whole["content"][0]["text"]
    assert events[0][1]["message"]["usage"] == {"input_tokens": 10, "output_tokens": 0}
    assert events[-2][1]["delta"]["stop_reason"] == "end_turn"
    assert events[-2][1]["usage"] == whole["usage"]


@pytest.mark.parametrize(("ended", "told"), [("stop", "end_turn"), ("length", "max_tokens"), ("abort", None)])
async def test_a_message_says_why_it_ends_in_words_of_its_own(ended, told):
    generation = read_message(json.dumps(MESSAGE).encode(), SimConfig())
    whole, stream = (MessageAnswer(generation, "id", "sim") for _ in range(2))
    assert json.loads(whole.whole(3, ended))["stop_reason"] == told
    reason = json.dumps({"stop_reason": told, "stop_sequence": None}, separators=(",", ":"))
    assert f'"delta":{reason}'.encode() in stream.event(3, ended)


async def test_the_tokens_of_a_message_are_counted():
    async with serving() as (_, session):
        _, answer = await post(session, f"{MESSAGES}/count_tokens", {"model": "sim", "messages": CHAT["messages"]})
    assert answer == {"input_tokens": 10, "context_management": {"original_input_tokens": 10}}


async def test_a_messages_errors_have_their_own_shape_but_for_a_body_that_is_none():
    async with serving() as (_, session):
        other = await post(session, MESSAGES, MESSAGE | {"model": "other"})
        zero = await post(session, MESSAGES, MESSAGE | {"max_tokens": 0})
        missing = await post(session, MESSAGES, {"model": "sim", "messages": CHAT["messages"]})
    words = "The model `other` does not exist."
    assert other == (404, {"type": "error", "error": {"type": "NotFoundError", "message": words}})
    assert (zero[0], zero[1]["error"]["type"]) == (400, "BadRequestError")
    assert (missing[0], set(missing[1]["error"])) == (400, {"message", "type", "param", "code"})
