"""The engine target on a real vLLM engine, in this process: what it asks of vLLM, and what it makes of the answers.

All tests share one engine. It belongs to one event loop, which runs in a thread of its own.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from conftest import ENGINE_ARGS

from loadgen.clock import MonotonicClock
from loadgen.errors import LoadgenError, TargetError
from loadgen.measure.outcome import Exchange
from loadgen.profile import EngineTarget, Workload
from loadgen.targets.engine import vllm_api
from loadgen.targets.engine.lifecycle import Engine
from loadgen.targets.engine.opening import open_engine
from loadgen.targets.engine.session import EngineSession, tokenizer_of
from loadgen.workload.request import Audio, Image, Message, Part, Request, Text

# The first test waits for the engine.
pytestmark = pytest.mark.timeout(300)

GREEDY = {"temperature": 0.0}
CONTEXT = ENGINE_ARGS["max_model_len"]


class Started(NamedTuple):
    """A running engine and the loop that it belongs to."""

    portal: BlockingPortal
    engine: Engine
    target: EngineTarget
    tokenizer: Any
    template: str | None

    def session(self, *, stream: bool = True, kind: str = "chat", body: dict[str, Any] = GREEDY, **target: Any):
        changed = EngineTarget(model=self.target.model, stream=stream, **target)
        workload = Workload(kind=kind, body=body)
        now_ns = MonotonicClock().now_ns
        return EngineSession(
            self.engine, changed, workload, now_ns, tokenizer=self.tokenizer, chat_template=self.template
        )

    def answer(self, session: EngineSession, request: Request) -> Exchange:
        exchange = Exchange(texts=[])
        self.portal.call(session.send, session.prepare(request), exchange)
        return exchange


@pytest.fixture(scope="module")
def started(tiny_model) -> Iterator[Started]:
    target = EngineTarget(model=str(tiny_model), engine_args=ENGINE_ARGS)
    engine = Engine(target, None)
    with start_blocking_portal("asyncio", {"use_uvloop": True}) as portal:
        portal.call(engine.start)
        try:
            tokenizer = portal.call(tokenizer_of, engine)
            yield Started(portal, engine, target, tokenizer, vllm_api.chat_template_of(engine.vllm, tokenizer))
        finally:
            portal.call(engine.stop)


def chat(text: str | tuple[Part, ...], output_tokens: int | None = 16, index: int = 0) -> Request:
    return Request(index, messages=(Message("user", text),), output_tokens=output_tokens)


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not true():  # noqa: ASYNC110  (vLLM tells of neither)
            await anyio.sleep(0.005)


def ids(count: int, output_tokens: int | None, index: int = 0) -> Request:
    return Request(index, prompt=(300,) * count, output_tokens=output_tokens)


# --- its life ---------------------------------------------------------------------------------------------------------


def test_a_started_engine_is_well(started):
    started.portal.call(started.engine.check)
    assert started.engine.dead is None
    assert started.engine.max_model_len == CONTEXT


def test_an_engine_is_not_started_twice(started):
    with pytest.raises(TargetError, match="has been started already"):
        started.portal.call(started.engine.start)
    started.portal.call(started.engine.check)


@pytest.mark.parametrize("what", ["stop", "check"])
def test_what_was_not_started_is_neither_stopped_nor_checked(what):
    engine = Engine(EngineTarget(model="somewhere"), None)
    with pytest.raises(TargetError, match="has not been started"):
        anyio.run(getattr(engine, what))


def test_an_unknown_engine_argument_is_refused_by_name_with_a_near_miss(tiny_model):
    engine = Engine(EngineTarget(model=str(tiny_model), engine_args={"max_modle_len": 10}), None)
    with pytest.raises(LoadgenError, match=r"target\.engine_args\.max_modle_len: .*did you mean `max_model_len`"):
        anyio.run(engine.start)


def test_a_folder_that_is_not_there_is_told_at_once(tmp_path):
    engine = Engine(EngineTarget(model=str(tmp_path / "nothing"), engine_args=ENGINE_ARGS), None)
    with pytest.raises(TargetError, match=r"there is no folder .*nothing$"):
        anyio.run(engine.start)


def test_a_folder_without_a_model_is_told_in_one_line(tmp_path):
    engine = Engine(EngineTarget(model=str(tmp_path), engine_args=ENGINE_ARGS), None)
    with pytest.raises(TargetError, match="the engine did not start") as refusal:
        anyio.run(engine.start)
    assert "\n" not in str(refusal.value)
    assert "the model could not be loaded" in str(refusal.value)


# --- what it generates ------------------------------------------------------------------------------------------------


def test_streamed_and_whole_answers_say_the_same_under_greedy_decoding(started):
    streamed = started.answer(started.session(stream=True), chat("def main("))
    whole = started.answer(started.session(stream=False), chat("def main("))
    assert streamed.failure is whole.failure is None
    assert "".join(streamed.texts) == "".join(whole.texts) != ""
    assert len(streamed.texts) > 1
    assert len(whole.texts) == 1


def test_a_streamed_answer_counts_the_tokens_of_each_chunk(started):
    exchange = started.answer(started.session(), chat("def main(", 16))
    assert exchange.finish_reason == "length"
    assert exchange.output_tokens == sum(exchange.chunk_tokens) == 16
    assert len(exchange.chunk_tokens) == len(exchange.chunks_ns) <= 16
    assert list(exchange.chunks_ns) == sorted(exchange.chunks_ns)
    assert exchange.chunks_ns[-1] == exchange.end_ns


def test_a_whole_answer_has_tokens_and_no_chunks(started):
    exchange = started.answer(started.session(stream=False), chat("def main(", 16))
    assert (exchange.streamed, exchange.output_tokens, len(exchange.chunks_ns)) == (False, 16, 0)
    assert exchange.chunk_tokens is None


def test_prompt_tokens_are_the_ids_that_were_handed_over(started):
    session = started.session()
    prepared = session.prepare(chat("def main("))
    exchange = Exchange()
    started.portal.call(session.send, prepared, exchange)
    assert exchange.prompt_tokens == len(prepared.prompt["prompt_token_ids"])


def test_an_output_of_one_token_has_a_first_token(started):
    exchange = started.answer(started.session(), chat("def main(", 1))
    assert (exchange.output_tokens, list(exchange.chunk_tokens)) == (1, [1])
    assert exchange.chunks_ns[0] == exchange.end_ns


def test_without_an_asked_length_the_model_ends_by_itself_or_fills_its_context(started):
    session = started.session(kind="completion")
    exchange = started.answer(session, ids(CONTEXT - 40, None))
    # vLLM's own default would end it at 16.
    assert exchange.finish_reason == "stop" or exchange.output_tokens == 40


def test_the_engine_knows_the_request_by_an_id_of_its_own(started):
    session = started.session()
    exchanges = [started.answer(session, chat("x", 1, index)) for index in range(2)]
    other = started.answer(started.session(), chat("x", 1, 0))
    assert len({exchange.request_id for exchange in (*exchanges, other)}) == 3


def test_a_cancelled_request_keeps_what_it_had_and_is_aborted_in_the_engine(started):
    session = started.session()
    exchange = Exchange(texts=[])

    async def cut() -> None:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(session.send, session.prepare(chat("x", 900)), exchange)
                await until(lambda: len(exchange.chunks_ns) >= 5)
                scope.cancel()
        await until(lambda: started.engine.vllm.get_num_unfinished_requests() == 0)

    started.portal.call(cut)
    assert exchange.end_ns is None
    assert 5 <= exchange.output_tokens == sum(exchange.chunk_tokens) < 900
    assert "".join(exchange.texts)
    assert exchange.failure is None


def test_many_requests_at_once_get_an_answer_each(started):
    session = started.session()
    exchanges = [Exchange(texts=[]) for _ in range(32)]

    async def all_at_once() -> None:
        async with anyio.create_task_group() as tasks:
            for index, exchange in enumerate(exchanges):
                tasks.start_soon(session.send, session.prepare(chat(f"number {index}", 8, index)), exchange)

    started.portal.call(all_at_once)
    assert [exchange.output_tokens for exchange in exchanges] == [8] * 32
    assert {exchange.failure for exchange in exchanges} == {None}


# --- limits and refusals ----------------------------------------------------------------------------------------------


# A prompt that fills the context leaves no room for the one token that any answer has.
@pytest.mark.parametrize("tokens", [CONTEXT, CONTEXT + 1, 2 * CONTEXT])
def test_a_prompt_beyond_the_context_fails_as_too_long_and_the_engine_goes_on(started, tokens):
    session = started.session(kind="completion")
    exchange = started.answer(session, ids(tokens, 1))
    assert exchange.failure == "too_long"
    assert "\n" not in exchange.message
    assert started.answer(session, ids(10, 1)).failure is None


def test_prompt_and_output_beyond_the_context_are_answered_with_what_fits(started):
    exchange = started.answer(started.session(kind="completion"), ids(CONTEXT - 10, 50))
    assert (exchange.failure, exchange.output_tokens, exchange.finish_reason) == (None, 10, "length")


@pytest.mark.parametrize(
    ("part", "words"),
    [(Image("picture"), "takes no images"), (Audio("sound"), "takes no audio")],
    ids=["image", "audio"],
)
def test_a_model_of_text_says_in_a_sentence_that_it_takes_no_media(started, part, words):
    with pytest.raises(ValueError, match=words):
        started.session(request_format="plain").prepare(chat((part, Text("what is this?"))))


def test_a_name_that_is_no_sampling_parameter_is_refused(started):
    with pytest.raises(LoadgenError, match=r"workload\.body\.temprature: .*did you mean `temperature`"):
        started.session(body={"temprature": 1.0})


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", True), ("temperature", "hot"), ("seed", "x"), ("stop", 5), ("max_tokens", 1.5)]
)
def test_a_value_that_vllms_core_could_not_read_is_refused_before_a_model_is_loaded(tiny_model, name, value):
    target = EngineTarget(model=str(tiny_model), engine_args=ENGINE_ARGS)
    with pytest.raises(LoadgenError, match=rf"workload\.body\.{name} = .*vLLM refuses it") as refusal:
        anyio.run(opening, target, Workload(body={name: value}))
    assert refusal.value.exit_code == 2


def test_a_value_that_vllm_refuses_is_told(started):
    with pytest.raises(ValueError, match="temperature"):
        started.session(body={"temperature": -1.0}).prepare(chat("x"))


# --- what may be asked ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_a_choice_is_one_of_its_labels(started, stream):
    body = {"temperature": 1.0, "structured_outputs": {"choice": ["yes", "no way"]}}
    session = started.session(body=body, stream=stream)
    answers = ["".join(started.answer(session, chat("well?", None, index)).texts) for index in range(8)]
    assert set(answers) <= {"yes", "no way"}


def outputs(started: Started, session: EngineSession, request: Request) -> list[Any]:
    async def collect() -> list[Any]:
        return [output async for output in session.outputs(session.prepare(request))]

    return started.portal.call(collect)


def test_prompt_logprobs_have_an_entry_for_each_prompt_token_but_the_first(started):
    session = started.session(kind="completion", body={**GREEDY, "prompt_logprobs": 2})
    first = outputs(started, session, ids(10, 2))[0]
    assert len(first.prompt_logprobs) == 10
    assert first.prompt_logprobs[0] is None
    assert all(300 in entry and entry[300].logprob <= 0 for entry in first.prompt_logprobs[1:])


@pytest.mark.parametrize(
    ("kind", "body"), [("chat", {"logprobs": True, "top_logprobs": 3}), ("completion", {"logprobs": 3})]
)
def test_logprobs_are_asked_for_as_over_http(started, kind, body):
    session = started.session(kind=kind, body={**GREEDY, **body})
    request = chat("x", 4) if kind == "chat" else ids(10, 4)
    entries = [entry for output in outputs(started, session, request) for entry in output.outputs[0].logprobs]
    # The three likeliest, of which under greedy decoding the chosen one is the first.
    assert [len(entry) for entry in entries] == [3] * 4


def test_the_models_own_defaults_are_the_start_as_in_vllms_server(started):
    sampling = started.session(body={}).prepare(chat("x", None)).sampling
    assert (
        vllm_api.default_sampling(started.engine.vllm).items()
        <= {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k", "repetition_penalty")}.items()
    )


# --- prompts ----------------------------------------------------------------------------------------------------------


def prompt_ids(started: Started, request: Request, **target: Any) -> list[int]:
    return started.session(**target).prompt_of(request)[0]["prompt_token_ids"]


def test_a_chat_is_written_by_the_models_template_and_encoded_once(started):
    theirs = started.tokenizer.apply_chat_template(
        [{"role": "user", "content": "hello"}], add_generation_prompt=True, tokenize=False
    )
    got = prompt_ids(started, chat("hello"))
    assert started.tokenizer.decode(got) == theirs
    # The turn's own mark is one token, and no begin-of-text stands before it.
    assert got[0] == started.tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert started.tokenizer.bos_token_id not in got


def test_earlier_turns_become_earlier_messages(started):
    turns = (
        Message("system", "be brief"),
        Message("user", "one"),
        Message("assistant", "two"),
        Message("user", "three"),
    )
    text = started.tokenizer.decode(prompt_ids(started, Request(0, messages=turns)))
    assert [text.index(said) for said in ("be brief", "one", "two", "three")] == sorted(
        text.index(said) for said in ("be brief", "one", "two", "three")
    )
    assert text.count("<|im_start|>") == 5  # four turns, and the answer's beginning


def test_a_plain_prompt_has_no_roles(started):
    turns = (Message("system", "be brief"), Message("user", "hello"))
    got = prompt_ids(started, Request(0, messages=turns), request_format="plain")
    assert got == started.tokenizer.encode("be brief hello")


def test_a_template_of_ones_own_is_used_and_encoded_without_further_special_tokens(started):
    form = "{% for message in messages %}<|bos|>{{ message.content }}{% endfor %}"
    got = prompt_ids(started, chat("hello"), request_format=form)
    assert got == started.tokenizer.encode("<|bos|>hello", add_special_tokens=False)
    assert got.count(started.tokenizer.bos_token_id) == 1


OWN = "{% for message in messages %}<|bos|>{{ message.content }}{% endfor %}"
SEES = (
    "{{ bos_token }}{% if not enable_thinking %}no thoughts{% endif %}{{ tools is none and documents is none }}"
    "{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}{% generation %}{{ messages[0].content }}"
    "{% endgeneration %}{% if add_generation_prompt %}<|im_start|>{% endif %}"
)


@pytest.mark.parametrize("form", ["default-template", OWN, SEES])
@pytest.mark.parametrize("fields", [{}, {"enable_thinking": True}, {"enable_thinking": False}], ids=str)
def test_every_template_is_rendered_as_transformers_renders_it(started, form, fields):
    template = None if form == "default-template" else form
    theirs = started.tokenizer.apply_chat_template(
        [{"role": "user", "content": "hello"}],
        chat_template=template,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
        **fields,
    )
    got = prompt_ids(started, chat("hello"), request_format=form, body={**GREEDY, "chat_template_kwargs": fields})
    assert got == theirs


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('only\nwith tools') }}", "fails: only with tools"),
        ("{{ messages.clear() }}", "fails: access to attribute 'clear'"),  # the sandbox changes nothing
    ],
)
def test_a_template_that_fails_fails_the_request_with_its_reason(started, template, words):
    with pytest.raises(ValueError, match="the template of target.request_format " + words):
        prompt_ids(started, chat("hello"), request_format=template)


# --- a tokenizer that writes chats in code ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mistral_model(tmp_path_factory) -> Path:
    """The folder of a tiny model under a tokenizer of Mistral's, which comes with its library."""
    import mistral_common
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("mistral")
    shutil.copy(Path(mistral_common.__file__).parent / "data" / "tekken_240911.json", folder / "tekken.json")
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 11}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=131_072, dtype="float32", **shape, **ends)).save_pretrained(folder)
    return folder


def test_a_chat_of_a_mistral_tokenizer_is_what_its_library_writes(mistral_model):
    from mistral_common.protocol.instruct.messages import UserMessage
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    library = MistralTokenizer.from_file(str(mistral_model / "tekken.json"))
    theirs = library.encode_chat_completion(ChatCompletionRequest(messages=[UserMessage(content="hello")])).tokens
    target = EngineTarget(model=str(mistral_model), engine_args={**ENGINE_ARGS, "tokenizer_mode": "mistral"})
    workload = Workload(body=GREEDY)

    async def asked() -> tuple[list[int], Exchange]:
        async with open_engine(target, workload, (workload, chat("x", 2)), None, MonotonicClock()) as session:
            prepared, exchange = session.prepare(chat("hello", 4)), Exchange(texts=[])
            await session.send(prepared, exchange)
            # What such a tokenizer would pass over is refused.
            own = msgspec.structs.replace(target, request_format=OWN)
            thinking = Workload(body={"chat_template_kwargs": {"enable_thinking": False}})
            for asking, words in (((own, workload), "takes no template"), ((target, thinking), "enable_thinking: ")):
                with pytest.raises(LoadgenError, match=words):
                    EngineSession(session._engine, *asking, lambda: 0, tokenizer=session._tokenizer, chat_template=None)
            return prepared.prompt["prompt_token_ids"], exchange

    ids, exchange = anyio.run(asked)
    assert ids == theirs
    assert (exchange.failure, exchange.prompt_tokens, exchange.output_tokens) == (None, len(theirs), 4)


async def opening(target: EngineTarget, workload: Workload) -> None:
    async with open_engine(target, workload, (workload, chat("x", 2)), None, MonotonicClock()):
        raise AssertionError("opened")
