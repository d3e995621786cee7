"""Who counts the tokens of synthetic text, by what a server answers to `/tokenize`."""

from typing import Any

import pytest

from loadgen.clock import MonotonicClock
from loadgen.profile import HttpTarget, Workload
from loadgen.targets.base import TargetInfo
from loadgen.targets.http.preflight import tokenizer_of_server
from loadgen.targets.http.session import open_http
from loadgen.workload.request import Tokenization
from loadgen.workload.tokens import PROBE_TEXT, estimate
from tests.targets.http.loopback import Seen, reply, serving

pytestmark = pytest.mark.anyio

TEMPLATE_TOKENS = 9
REFUSED = reply(400, {"error": {"message": "you must provide a chat template", "code": 400}})


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def tokens_of(
    text: str, *, strings: bool, begin: tuple[str, ...] = ("[CLS]",), end: tuple[str, ...] = ("[SEP]",)
) -> Any:
    """The answer of a server whose words are one token each, framed by special ones."""
    pieces = [*begin, *text.split(), *end]
    return {"count": len(pieces), "tokens": [0] * len(pieces), "token_strs": pieces if strings else None}


async def learnt(*, template: bool, plain: bool = True, strings: bool = True) -> Tokenization:
    """What is learnt of a server that has a chat template or none, knows plain texts or not, tells strings or not."""

    def answer(seen: Seen) -> bytes:
        asked = seen.json
        if "messages" not in asked:
            return reply(200, tokens_of(asked["prompt"], strings=strings)) if plain else REFUSED
        if not template:
            return REFUSED
        # The template frames the text itself, by 9 tokens.
        framed = tokens_of(asked["messages"][0]["content"], strings=strings, begin=("<u>",) * 4, end=("<a>",) * 5)
        return reply(200, framed)

    async def respond(seen: Seen, writer: Any) -> None:
        writer.write(answer(seen))
        await writer.drain()

    info = TargetInfo(kind="http", model="tiny")
    async with serving(respond) as server:
        target = HttpTarget(url=server.url)
        async with open_http(target, Workload(), info, MonotonicClock()) as session:
            return await tokenizer_of_server(session, target)


async def test_a_server_tells_the_tokens_of_words_of_its_frame_and_of_its_chat_template() -> None:
    found = await learnt(template=True)
    assert (found.source, found.exact, found.special_tokens) == ("server", True, 2)
    assert set(found.word_tokens) == {1}
    assert found.template_tokens == TEMPLATE_TOKENS


async def test_of_a_model_without_a_chat_template_all_else_is_learnt() -> None:
    found = await learnt(template=False)
    assert (found.source, found.exact, found.special_tokens, found.template_tokens) == ("server", True, 2, 0)


@pytest.mark.parametrize("template", [True, False])
async def test_a_server_that_tells_counts_alone_gives_the_mean(template: bool) -> None:
    found = await learnt(template=template, strings=False)
    words = len(PROBE_TEXT.split())
    assert (found.source, found.exact) == ("server", False)
    # Its two special tokens are spread over the words, and so the chat has 9 - 2 more than the plain text.
    assert found.word_tokens[0] == pytest.approx((words + 2) / words)
    assert found.template_tokens == (TEMPLATE_TOKENS - 2 if template else 0)


async def test_where_a_server_does_not_tokenize_the_counts_are_an_estimate() -> None:
    assert await learnt(template=True, plain=False) == estimate()
