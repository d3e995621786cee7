"""How the session has chats written, and what it makes of how an engine ends an answer; the rest is tested on a real
engine, in tests/real.

A real engine cannot be made to end a request with an error of its own, so here stands one that does as it is told.
"""

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from loadgen.errors import LoadgenError
from loadgen.measure.outcome import Exchange
from loadgen.profile import EngineTarget
from loadgen.targets.engine.sampling import sampling_of
from loadgen.targets.engine.session import EngineSession, Prepared
from loadgen.workload.prompt import compile_template
from loadgen.workload.request import Message, Request

ASKED = 8


class ToldEngine:
    """Yields one output of `tokens` tokens that ends with `finish_reason`."""

    max_model_len = 1024

    def __init__(self, tokens: int, finish_reason: str | None, dead: str | None = None) -> None:
        self.tokens = tokens
        self.finish_reason = finish_reason
        self.dead = dead
        self.doomed = False

    async def generate(self, *_: Any) -> Any:
        answer = SimpleNamespace(token_ids=[1] * self.tokens, text="x", finish_reason=self.finish_reason)
        yield SimpleNamespace(outputs=[answer], prompt_token_ids=[1, 2, 3], finished=self.finish_reason is not None)

    def doom(self) -> None:
        self.doomed = True

    def epitaph(self) -> str:
        return "the engine died"

    async def abort(self, request_id: str) -> None:
        raise AssertionError("what has ended is not aborted")


def answered(engine: ToldEngine) -> Exchange:
    session = EngineSession.__new__(EngineSession)
    session._engine = engine
    session._now_ns = lambda: 5
    session._sampling = SimpleNamespace(stream=True, priority=0)
    exchange = Exchange()
    prepared = Prepared("id", {"prompt_token_ids": [1, 2, 3]}, None, None, ASKED)
    anyio.run(session.send, prepared, exchange)
    return exchange


@pytest.mark.parametrize(
    ("tokens", "finish_reason", "dead", "failure"),
    [
        (ASKED, "length", None, None),
        (ASKED - 3, "stop", None, None),
        (ASKED - 3, "length", None, None),  # short, and told as such by the counts
        (ASKED - 3, "abort", None, "engine_dead"),
        (ASKED - 3, None, None, "engine_dead"),
        (ASKED - 3, "length", "EngineCore, exit code 0", "engine_dead"),
        (ASKED, "length", "EngineCore, exit code 0", None),  # whole before the engine ended
        (ASKED - 3, "error", None, "server_error"),
    ],
)
def test_an_answer_that_the_engines_end_cut_short_is_no_success(tokens, finish_reason, dead, failure):
    engine = ToldEngine(tokens, finish_reason, dead)
    exchange = answered(engine)
    assert exchange.failure == failure
    assert exchange.target_gone == (failure == "engine_dead")
    assert exchange.output_tokens == tokens
    assert exchange.end_ns == 5
    assert bool(exchange.message) == (failure is not None)


# --- prompts ----------------------------------------------------------------------------------------------------------

HELLO = Request(0, messages=(Message("user", "hello"),))
MODELS_OWN = "model{% if thinking %}+{% endif %}:{{ messages[0].content }}"


class TemplateTokenizer:
    """Writes by a template, as one of transformers does; a letter is a token, and one stands before plain text."""

    def apply_chat_template(self, conversation: Any, *, chat_template: str, tokenize: bool, **more: Any) -> str:
        assert not tokenize
        more.pop("return_dict", None)
        return compile_template(chat_template).render(messages=conversation, tools=None, **more)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [0] * add_special_tokens + [*map(ord, text)]


class CodeTokenizer(TemplateTokenizer):
    """Writes in code, with a marker that no text spells, and lets templates pass unread, as Mistral's does."""

    def apply_chat_template(self, messages: Any, tools: Any = None, **more: Any) -> Any:
        if not more["tokenize"]:
            return "<marker>" + messages[0]["content"]
        return [-1, *map(ord, messages[0]["content"]), *[-2] * more.get("thinking", False)]


def ids_of(tokenizer: Any, request_format: str, fields: dict[str, Any]) -> list[int]:
    """The prompt of one chat, where `fields` are the profile's `chat_template_kwargs`."""
    session = EngineSession.__new__(EngineSession)
    session._target = EngineTarget(model="m", request_format=request_format)
    session._tokenizer = tokenizer
    session._hearing = None
    session._sampling = sampling_of({"chat_template_kwargs": fields}, {}, (), chat=True, stream=True)
    session._set_format(MODELS_OWN)
    return session.prompt_of(HELLO)[0]["prompt_token_ids"]


@pytest.mark.parametrize("fields", [{}, {"thinking": True}, {"add_generation_prompt": False}], ids=str)
@pytest.mark.parametrize(
    ("request_format", "template"),
    [
        ("default-template", MODELS_OWN),
        ("{{ messages[0].content }}", "{{ messages[0].content }}"),
        ("{% if thinking %}hm, {% endif %}{{ messages[0].content }}{{ tools is none }}", None),
        ("{% if add_generation_prompt %}>{% endif %}{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}", None),
    ],
)
def test_a_template_whosever_gets_what_the_profile_tells_templates(request_format, template, fields):
    values = {"messages": [{"role": "user", "content": "hello"}], "tools": None, "add_generation_prompt": True} | fields
    text = compile_template(template or request_format).render(values)
    assert ids_of(TemplateTokenizer(), request_format, fields) == [*map(ord, text)]


def test_what_a_tokenizer_writes_in_code_is_the_prompt():
    assert ids_of(CodeTokenizer(), "default-template", {}) == [-1, *map(ord, "hello")]
    assert ids_of(CodeTokenizer(), "default-template", {"thinking": True}) == [-1, *map(ord, "hello"), -2]
    assert ids_of(CodeTokenizer(), "plain", {}) == [0, *map(ord, "hello")]


def test_a_template_that_a_tokenizer_would_pass_over_is_refused():
    with pytest.raises(LoadgenError, match=r"target\.request_format: .* must be default-template or plain"):
        ids_of(CodeTokenizer(), "{{ messages[0].content }}", {})
