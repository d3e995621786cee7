import anyio
import pytest

from loadgen.clock import MonotonicClock
from loadgen.errors import TargetError
from loadgen.profile import HttpTarget, Workload
from loadgen.targets.base import TargetInfo
from loadgen.targets.http.preflight import TokenizeAnswer, check_http, server_tokenize
from loadgen.targets.http.session import open_http
from loadgen.units import NS_PER_SECOND, Duration
from loadgen.workload.request import Message, Request
from tests.targets.http.loopback import (
    DONE,
    ROLE,
    STREAM_END,
    STREAM_HEAD,
    chunk,
    last_token,
    refused_port,
    reply,
    serving,
    token,
    usage,
)

pytestmark = pytest.mark.anyio

TRIAL = Request(index=0, messages=(Message("user", "hello"),), output_tokens=2)
ANSWER = STREAM_HEAD + chunk(ROLE, token("a"), last_token("b"), usage(7, 2), DONE) + STREAM_END
MODELS = {"data": [{"id": "tiny", "max_model_len": 1024}, {"id": "adapter"}]}
CHAT = "/v1/chat/completions"
NOT_FOUND = reply(404, {"detail": "Not Found"})
SECRET = "sk-not-to-be-seen"


@pytest.fixture
def anyio_backend():
    return "asyncio"


class FakeVllm:
    """A server whose answers are told by path; one that is callable is asked with the request."""

    def __init__(self, **changed):
        self.answers = {
            "/health": reply(200, b""),
            "/version": reply(200, {"version": "0.32.0"}),
            "/v1/models": reply(200, MODELS),
            CHAT: ANSWER,
        } | changed

    async def __call__(self, seen, writer):
        answer = self.answers.get(seen.path, NOT_FOUND)
        answer = answer(seen) if callable(answer) else answer
        if answer is None:  # silence
            return
        writer.write(answer)
        await writer.drain()


async def checked(server=None, workload=None, **target):
    """What the check finds out, and the bodies of the trials."""
    async with serving(server or FakeVllm()) as loopback:
        options = {"url": loopback.url} | target
        info = await check_http(HttpTarget(**options), workload or Workload(), TRIAL, MonotonicClock())
    return info, [seen.json for seen in loopback.seen if seen.path == CHAT]


async def refusal(server=None, workload=None, **target):
    with pytest.raises(TargetError) as raised:
        await checked(server, workload, **target)
    assert "\n" not in str(raised.value)
    return str(raised.value)


async def test_a_good_server_is_described():
    info, trials = await checked()
    assert info.kind == "http"
    assert info.url.startswith("http://127.0.0.1:")
    assert info.model == "tiny"
    assert info.available_models == ("tiny", "adapter")
    assert info.version == "0.32.0"
    assert info.max_model_len == 1024
    assert info.omitted_fields == ()
    assert info.warnings == ()
    assert [trial["model"] for trial in trials] == ["tiny"]


async def test_a_model_that_is_named_is_taken():
    info, _ = await checked(model="adapter")
    assert (info.model, info.max_model_len) == ("adapter", None)


async def test_a_model_that_is_not_served_is_refused_with_those_that_are():
    text = await refusal(model="tinny")
    assert text.endswith('does not serve the model "tinny" (did you mean "tiny"?): it serves "tiny", "adapter"')


@pytest.mark.parametrize(
    "answer", [NOT_FOUND, reply(401, {"error": "Unauthorized"}), reply(200, b"<html>"), reply(200, {"data": []})]
)
async def test_a_server_that_names_no_models_is_asked_without_one(answer):
    info, trials = await checked(FakeVllm(**{"/v1/models": answer}))
    assert info.model is None
    assert "model" not in trials[0]
    assert len(info.warnings) == 1
    assert "names no model" in info.warnings[0]


async def test_a_server_that_names_no_models_is_asked_for_the_one_that_was_given():
    info, trials = await checked(FakeVllm(**{"/v1/models": NOT_FOUND}), model="mine")
    assert info.model == trials[0]["model"] == "mine"
    assert info.warnings == ()


async def test_a_server_with_nothing_but_its_api_is_fine():
    info, _ = await checked(FakeVllm(**{"/health": NOT_FOUND, "/version": NOT_FOUND}))
    assert info.version is None
    assert info.warnings == ()


async def test_an_unhealthy_server_that_answers_is_warned_of():
    info, _ = await checked(FakeVllm(**{"/health": reply(503, b"engine is dead", "text/plain")}))
    assert info.warnings[0].endswith("/health answered 503 engine is dead")


# --- strict servers ---------------------------------------------------------------------------------------------------


def strict(error_of, *unknown):
    """A server that refuses the first of the unknown fields that a body has, in the words of `error_of`."""

    def answer(seen):
        known = [name for name in unknown if name in seen.json]
        return error_of(known[0]) if known else ANSWER

    return FakeVllm(**{CHAT: answer})


@pytest.mark.parametrize(
    "error_of",
    [
        lambda name: reply(400, {"error": {"message": f"Unrecognized request argument supplied: {name}"}}),
        lambda name: reply(400, {"error": {"message": "Extra inputs are not permitted", "param": name}}),
        lambda name: reply(422, {"detail": [{"loc": ["body", name], "msg": "Extra inputs are not permitted"}]}),
        lambda name: reply(422, f"unknown field `{name}` at line 1".encode(), "text/plain"),
    ],
)
async def test_fields_that_a_server_refuses_are_left_out(error_of):
    info, trials = await checked(strict(error_of, "ignore_eos", "min_tokens", "stream_options"))
    assert info.omitted_fields == ("ignore_eos", "min_tokens", "stream_options")
    assert len(trials) == 4
    assert set(trials[-1]) == {"model", "messages", "stream", "max_tokens"}
    assert [warning.split(",")[0] for warning in info.warnings] == [
        "the server refuses ignore_eos",
        "the server refuses min_tokens",
        "the server refuses stream_options",
    ]


async def test_a_field_of_the_workload_is_never_left_out():
    error = reply(400, {"error": {"message": "unknown field min_tokens"}})
    workload = Workload(body={"min_tokens": 1})
    text = await refusal(strict(lambda name: error, "min_tokens"), workload)
    assert "status 400: unknown field min_tokens" in text


async def test_a_field_that_is_refused_though_it_was_left_out_ends_the_check():
    text = await refusal(FakeVllm(**{CHAT: reply(400, {"error": {"message": "no min_tokens"}})}))
    assert "status 400: no min_tokens" in text


# --- servers that cannot be loaded ------------------------------------------------------------------------------------


async def test_nobody_listens():
    with refused_port() as port:
        text = await refusal(url=f"http://127.0.0.1:{port}/v1")
    assert text == (
        f"GET http://127.0.0.1:{port}/health: connect: 127.0.0.1:{port}: Connection refused; "
        "check --target (target.url), and that the server is up"
    )


async def test_no_such_host():
    text = await refusal(url="http://nonexistent.invalid")
    assert text.startswith("GET http://nonexistent.invalid/health: dns: nonexistent.invalid: ")


async def test_a_wrong_key(monkeypatch):
    monkeypatch.setenv("THE_KEY", SECRET)
    server = FakeVllm(**{CHAT: reply(401, {"error": f"{SECRET} is wrong"})})
    text = await refusal(server, api_key_env="THE_KEY")
    assert f"{CHAT}: status 401: *** is wrong; check the key" in text
    assert SECRET not in text


async def test_a_key_that_was_not_given():
    text = await refusal(FakeVllm(**{CHAT: reply(401, {"error": "Unauthorized"})}))
    assert text.endswith(
        "status 401: Unauthorized; name the environment variable that holds the key in target.api_key_env"
    )


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (NOT_FOUND, "status 404: Not Found; check --target (target.url) and --model (target.model)"),
        (reply(503, b""), "status 503: 503 Reason, without a body; check the server's log"),
        (
            reply(200, b"<title>Hello</title>", "text/html"),
            "protocol: text/html instead of an answer: Hello; check that",
        ),
        (STREAM_HEAD + chunk(last_token("a", "abort"), DONE) + STREAM_END, "abort: the server aborted the request"),
        (STREAM_HEAD + STREAM_END, "disconnect: the stream ended before its end marker"),
    ],
)
async def test_a_trial_that_fails_says_what_came_and_what_to_do(answer, words):
    text = await refusal(FakeVllm(**{CHAT: answer}))
    assert text.startswith("POST http://127.0.0.1:")
    assert f"{CHAT}: {words}" in text


@pytest.mark.parametrize("path", ["/health", CHAT])
async def test_a_silent_server_is_given_up(path):
    with anyio.fail_after(2):
        text = await refusal(FakeVllm(**{path: lambda seen: None}), preflight_timeout=Duration(NS_PER_SECOND // 5))
    assert f"{path}: not answered within target.preflight_timeout = 200ms;" in text


async def test_a_stream_that_never_ends_is_given_up():
    answer = STREAM_HEAD + chunk(token("a"))
    text = await refusal(FakeVllm(**{CHAT: answer}), preflight_timeout=Duration(NS_PER_SECOND // 5))
    assert "not answered within" in text


# --- what the trial's answer lacks ------------------------------------------------------------------------------------


async def test_an_answer_that_is_not_streamed_is_warned_of():
    whole = {"choices": [{"finish_reason": "length"}], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
    info, _ = await checked(FakeVllm(**{CHAT: reply(200, whole)}))
    assert info.warnings == ("the server does not stream: there is no time to first token, nor between tokens",)


async def test_an_answer_without_usage_is_warned_of():
    answer = STREAM_HEAD + chunk(token("a"), last_token("b"), DONE) + STREAM_END
    info, _ = await checked(FakeVllm(**{CHAT: answer}))
    assert info.warnings == ("the server reports no usage: chunks are counted for tokens",)


async def test_a_short_answer_is_warned_of():
    answer = STREAM_HEAD + chunk(last_token("a", "stop"), usage(7, 1), DONE) + STREAM_END
    info, _ = await checked(FakeVllm(**{CHAT: answer}))
    assert info.warnings == ("the trial asked for 2 tokens and got 1: outputs may be short",)


# --- the server's tokenizer -------------------------------------------------------------------------------------------


async def tokenized(answer, **question):
    async with serving(FakeVllm(**{"/tokenize": answer})) as server:
        target = HttpTarget(url=f"{server.url}/v1")
        async with open_http(target, Workload(), TargetInfo(kind="http", model="tiny"), MonotonicClock()) as session:
            said = await server_tokenize(session, **question)
    return said, server.seen[0].json


TOKENS = {"count": 2, "tokens": [5, 6], "token_strs": ["a", "Ġb"], "max_model_len": 1024}


async def test_the_server_tokenizes_a_text():
    said, asked = await tokenized(reply(200, TOKENS), prompt="a b")
    assert said == TokenizeAnswer(count=2, tokens=(5, 6), token_strs=("a", "Ġb"), max_model_len=1024)
    assert asked == {"model": "tiny", "prompt": "a b", "return_token_strs": True}


async def test_the_server_tokenizes_a_conversation():
    said, asked = await tokenized(reply(200, {**TOKENS, "token_strs": None}), messages=(Message("user", "a b"),))
    assert said.token_strs is None
    assert asked["messages"] == [{"role": "user", "content": "a b"}]
    assert "prompt" not in asked


@pytest.mark.parametrize("answer", [NOT_FOUND, reply(200, b"<html>"), reply(200, {"tokens": []})])
async def test_a_server_that_does_not_tokenize_says_nothing(answer):
    said, _ = await tokenized(answer, prompt="a")
    assert said is None


# --- kinds whose answers are whole ------------------------------------------------------------------------------------

CHOICE = Workload(kind="choice", labels=("yes", "no"))


def says(content, finish_reason="stop"):
    choice = {"message": {"content": content}, "finish_reason": finish_reason}
    return reply(200, {"choices": [choice], "usage": {"completion_tokens": 2}})


def obeying(*fields, free="Hello!", **changed):
    """A server that answers the first label that one of these fields allows, and what it likes without them."""

    def answer(seen):
        allowed = [seen.json[field] for field in fields if field in seen.json]
        if not allowed:
            return says(free)
        return says((allowed[0]["choice"] if isinstance(allowed[0], dict) else allowed[0])[0])

    return FakeVllm(**{CHAT: answer} | changed)


def version(text):
    return {"/version": reply(200, {"version": text})}


async def test_a_choice_that_the_server_constrains_is_fine():
    info, (trial, own) = await checked(obeying("structured_outputs"), CHOICE)
    assert info.warnings == ()
    assert info.constraint == "structured_outputs"
    assert trial["structured_outputs"] == {"choice": ["qzxj"]}  # no model would say that by itself
    assert own["structured_outputs"] == {"choice": ["yes", "no"]}


async def test_an_old_server_is_asked_for_labels_in_its_own_way():
    info, (trial, own) = await checked(obeying("guided_choice", **version("0.8.5")), CHOICE)
    assert info.constraint == "guided_choice"
    assert (trial["guided_choice"], own["guided_choice"]) == (["qzxj"], ["yes", "no"])


async def test_a_server_of_no_known_version_is_tried_with_both_fields_and_loaded_by_the_one_that_holds():
    info, trials = await checked(obeying("guided_choice", **version("dev")), CHOICE)
    assert info.constraint == "guided_choice"
    names = ("structured_outputs", "guided_choice")
    assert [[name for name in names if name in trial] for trial in trials] == [[names[0]], [names[1]], [names[1]]]


async def test_a_server_that_ignores_the_constraint_is_refused_though_it_says_a_label():
    told = await refusal(obeying("guided_choice", free="yes"), CHOICE)  # a current one, that knows the old field only
    assert f"{CHAT}: no constraint: the server answers 'yes' where structured_outputs allows 'qzxj' only; " in told
    assert 'workload.kind = "choice" needs a server that constrains answers' in told


async def test_a_server_that_refuses_the_constraint_is_told_in_its_words():
    told = await refusal(FakeVllm(**{CHAT: reply(422, {"detail": "no such field"})}), CHOICE)
    assert "no constraint: the server refuses structured_outputs: no such field" in told


async def test_a_failure_at_the_trial_of_the_constraint_is_told_as_any_other():
    told = await refusal(FakeVllm(**{CHAT: reply(503, {"error": {"message": "loading"}})}), CHOICE)
    assert "status 503: loading; check the server's log" in told


async def test_a_trial_that_thinks_until_it_is_cut_off_says_nothing_of_the_server():
    told = await refusal(FakeVllm(**{CHAT: says(None, "length")}), CHOICE)
    assert "the trial has no answer (finish_reason 'length'): max_tokens may be too few; check [workload.body]" in told


@pytest.mark.parametrize(("body", "most"), [({}, 5), ({"max_tokens": 1}, 5), ({"max_completion_tokens": 900}, 900)])
async def test_the_trial_of_the_constraint_has_room_for_its_label_and_the_profile_s_other_fields(body, most):
    # Four letters are at most four tokens, and the end is one.
    workload = Workload(kind="choice", labels=("A", "B"), body={"temperature": 1.0, "seed": 7, **body})
    _, (trial, own) = await checked(obeying("structured_outputs"), workload)
    assert (trial["max_tokens"], trial["temperature"], trial["seed"]) == (most, 0.0, 7)
    assert "max_completion_tokens" not in trial
    assert (own["temperature"], own["seed"]) == (1.0, 7)


async def test_a_constraint_of_the_profile_s_own_is_not_tried():
    body = {"structured_outputs": {"regex": "yes|no"}}
    server = FakeVllm(**{CHAT: lambda seen: says("no" if "regex" in seen.json["structured_outputs"] else "?")})
    info, (own,) = await checked(server, Workload(kind="choice", labels=("yes", "no"), body=body))
    assert info.constraint is None
    assert own["structured_outputs"] == {"regex": "yes|no"}


async def test_an_answer_that_is_none_of_the_labels_is_refused():
    def answer(seen):
        return says("qzxj" if seen.json["structured_outputs"]["choice"] == ["qzxj"] else "Well, no", "length")

    told = await refusal(FakeVllm(**{CHAT: answer}), CHOICE)
    assert 'not a label: the answer is no label: "Well, no"; check [workload.body]' in told


async def test_what_generates_nothing_is_not_said_to_lack_a_stream_or_a_count_of_output():
    server = FakeVllm(**{"/v1/embeddings": reply(200, {"data": [{"embedding": [1]}], "usage": {"prompt_tokens": 3}})})
    async with serving(server) as loopback:
        trial = Request(index=0, inputs=("hello",))
        info = await check_http(HttpTarget(url=loopback.url), Workload(kind="embed"), trial, MonotonicClock())
    assert info.warnings == ()


async def test_a_server_without_the_endpoint_of_a_kind_is_told_with_the_kind():
    trial = Request(index=0, inputs=("hello",))
    async with serving(FakeVllm()) as loopback:
        target = HttpTarget(url=loopback.url)
        with pytest.raises(
            TargetError, match="/v1/embeddings: status 404: Not Found; check that its model is made for"
        ):
            await check_http(target, Workload(kind="embed"), trial, MonotonicClock())
