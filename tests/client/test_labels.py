"""Answers that are labels: what is sent, what is tried first, and what a server's disobedience becomes."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from loadgen.client import LabelError, RequestError, VLLMClient
from loadgen.client.labels import check_labels
from tests.client.scripted import Vllm, answer, scripted
from tests.targets.http.loopback import Loopback, reply

pytestmark = pytest.mark.anyio

LABELS = ["yes", "no"]
CURRENT = {"structured_outputs": {"choice": LABELS}}
FORMER = {"guided_choice": LABELS}


def chats(server: Loopback) -> list[dict]:
    """The bodies of the chats that a server was asked for, trials among them."""
    return [seen.json for seen in server.seen if seen.path == "/v1/chat/completions"]


def constraints(server: Loopback) -> list[dict]:
    """What constrained each of them."""
    names = ("structured_outputs", "guided_choice")
    return [{name: body[name] for name in names if name in body} for body in chats(server)]


@pytest.mark.parametrize("labels", [[], [""], [" a"], ["a\n"], ["a", "b", "a"], "yes"])
def test_labels_that_cannot_be_told_apart_are_refused(labels):
    with pytest.raises(ValueError, match="label"):
        check_labels(labels)


async def test_a_choice_is_one_of_the_labels_and_is_constrained_by_the_current_field():
    async with scripted(Vllm().respond) as server, VLLMClient(base_url=server.url) as client:
        response = await client.achat("is it?", constrain_labels=LABELS, temperature=0.0)
    assert (response.content, response.label, response.label_logprobs) == ("yes", "yes", None)
    trial, constraint = constraints(server)
    assert trial == {"structured_outputs": {"choice": ["qzxj"]}}
    assert constraint == CURRENT


@pytest.mark.parametrize(
    ("theirs", "call", "sent"),
    [
        ({}, {}, 0.0),
        ({}, {"temperature": 0.7}, 0.7),
        ({"temperature": 0.7}, {}, 0.7),
        ({"temperature": 0.7}, {"temperature": 1.0}, 1.0),
        ({}, {"extra_body": {"temperature": 0.7}}, 0.7),
    ],
)
async def test_a_label_is_the_likeliest_unless_a_temperature_is_given(theirs, call, sent):
    async with scripted(Vllm().respond) as server, VLLMClient(base_url=server.url, extra_body=theirs) as client:
        await client.achat("is it?", constrain_labels=LABELS, **call)
        assert chats(server)[-1]["temperature"] == sent
        await client.achat("is it?", **call)
        assert chats(server)[-1].get("temperature") == (sent or None)  # without labels the server's own default


async def test_an_older_server_gets_the_older_field():
    async with scripted(Vllm("0.9.2", "guided_choice").respond) as server, VLLMClient(base_url=server.url) as client:
        assert (await client.achat("is it?", constrain_labels=LABELS)).label == "yes"
    assert constraints(server)[-1] == FORMER


async def test_a_server_without_a_version_is_tried_with_both_fields():
    async with scripted(Vllm(None, "guided_choice").respond) as server, VLLMClient(base_url=server.url) as client:
        assert (await client.achat("is it?", constrain_labels=LABELS)).label == "yes"
    assert [set(each) for each in constraints(server)] == [{"structured_outputs"}, {"guided_choice"}, {"guided_choice"}]


async def test_the_trial_is_made_once_for_many_choices_at_once():
    async with scripted(Vllm().respond) as server, VLLMClient(base_url=server.url) as client:
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(lambda: client.achat("is it?", constrain_labels=LABELS))
        assert await client.asupports_bare_label_constraint()
        assert client.supports_bare_label_constraint  # known: nothing is asked
    trials = [each for each in constraints(server) if each == {"structured_outputs": {"choice": ["qzxj"]}}]
    assert len(trials) == 1


@pytest.mark.parametrize("held", [True, False], ids=["open", "not open"])
async def test_ten_first_calls_at_once_ask_for_the_model_once_and_make_one_trial(held):
    async with scripted(Vllm().respond) as server, AsyncExitStack() as stack:
        client = VLLMClient(base_url=server.url)
        if held:
            await stack.enter_async_context(client)
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(lambda: client.achat("is it?", constrain_labels=LABELS))
    asked = [seen.path for seen in server.seen]
    assert (asked.count("/v1/models"), asked.count("/version"), len(chats(server))) == (1, 1, 1 + 10)


def test_ten_threads_that_call_first_ask_for_the_model_once_and_make_one_trial():
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(scripted(Vllm().respond)) as server:
        with VLLMClient(base_url=server.url) as client, ThreadPoolExecutor(10) as pool:
            answers = list(pool.map(lambda n: client.chat(f"is it {n}?", constrain_labels=LABELS), range(10)))
        asked = [seen.path for seen in server.seen]
    assert {answer.label for answer in answers} == {"yes"}
    assert (asked.count("/v1/models"), asked.count("/version"), len(chats(server))) == (1, 1, 1 + 10)


async def test_a_server_that_ignores_the_constraint_silently_is_told():
    async with scripted(Vllm(obeys=None).respond) as server, VLLMClient(base_url=server.url) as client:
        assert not await client.asupports_bare_label_constraint()
        with pytest.raises(LabelError, match="answers 'hello' where structured_outputs allows 'qzxj' only") as caught:
            await client.achat("is it?", constrain_labels=LABELS)
    assert caught.value.kind == "no_constraint"
    assert len(chats(server)) == 1  # what would not be constrained is not asked


async def test_a_server_that_refuses_the_field_is_told_in_its_words():
    def respond(path, body):
        if "structured_outputs" in (body or {}):
            return reply(400, {"error": {"message": "unknown field structured_outputs"}})
        return Vllm(obeys=None).respond(path, body)

    async with scripted(respond) as server, VLLMClient(base_url=server.url) as client:
        assert not await client.asupports_bare_label_constraint()
        with pytest.raises(LabelError, match="unknown field structured_outputs"):
            await client.achat("is it?", constrain_labels=LABELS)


async def test_a_server_that_fails_at_the_trial_is_asked_again_next_time():
    failures = iter([reply(503, {"error": {"message": "loading"}})])

    def respond(path, body):
        failure = next(failures, None) if path == "/v1/chat/completions" else None
        return failure or Vllm().respond(path, body)

    async with scripted(respond) as server, VLLMClient(base_url=server.url) as client:
        with pytest.raises(RequestError, match="loading") as caught:
            await client.achat("is it?", constrain_labels=LABELS)
        assert (caught.value.kind, caught.value.status) == ("http_503", 503)
        assert (await client.achat("is it?", constrain_labels=LABELS)).label == "yes"


async def test_a_trial_that_was_cut_off_says_nothing_of_the_server():
    async with (
        scripted(
            lambda path, body: Vllm().respond(path, body) if path != "/v1/chat/completions" else answer(None, "length")
        ) as server,
        VLLMClient(base_url=server.url) as client,
    ):
        with pytest.raises(LabelError, match="max_tokens may be too few"):
            await client.asupports_bare_label_constraint()


@pytest.mark.parametrize(
    ("said", "finish_reason", "words"),
    [
        ("maybe", "stop", "'maybe' is none of the labels"),
        ('"yes"', "stop", "none of the labels"),
        ("yes ", "stop", "none of the labels"),
        ("ye", "length", "cut off by max_tokens"),
        (None, "length", "cut off by max_tokens"),
    ],
)
async def test_an_answer_that_is_no_label_is_an_error(said, finish_reason, words):
    def respond(path, body):
        if (body or {}).get("structured_outputs") == CURRENT["structured_outputs"]:
            return answer(said, finish_reason)
        return Vllm().respond(path, body)

    async with scripted(respond) as server, VLLMClient(base_url=server.url) as client:
        with pytest.raises(LabelError, match=words) as caught:
            await client.achat("is it?", constrain_labels=LABELS)
    assert (caught.value.kind, caught.value.status) == ("not_a_label", 200)


async def test_a_choice_is_never_made_to_go_on_after_its_label():
    theirs = {"ignore_eos": True, "min_tokens": 9, "seed": 5}
    async with scripted(Vllm().respond) as server, VLLMClient(base_url=server.url, extra_body=theirs) as client:
        await client.achat("is it?", constrain_labels=LABELS, extra_body={"ignore_eos": True})
        await client.achat("is it?")
    trial, choice, free = chats(server)
    assert not {"ignore_eos", "min_tokens"} & (set(trial) | set(choice))
    assert trial["seed"] == choice["seed"] == free["seed"] == 5
    assert free["ignore_eos"] is True
