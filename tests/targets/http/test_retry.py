"""A server that asks for patience: waits, how often, and when a request gives up."""

import asyncio
import email.utils
import time
from typing import Any

import anyio
import pytest

from loadgen.clock import MonotonicClock
from loadgen.measure.outcome import Exchange
from loadgen.profile import HttpTarget, Workload
from loadgen.targets.base import TargetInfo
from loadgen.targets.http.headers import seconds_to_wait
from loadgen.targets.http.session import open_http
from loadgen.units import NS_PER_SECOND, Duration
from loadgen.workload.request import Message, Request
from tests.targets.http.loopback import Seen, answering, reply, serving

pytestmark = pytest.mark.anyio

HELLO = Request(index=0, messages=(Message("user", "hello"),), output_tokens=2)
GOOD = reply(200, {"choices": [{"finish_reason": "length", "message": {}}], "usage": {"completion_tokens": 2}})


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def busy(status: int = 429, after: str | None = "0") -> bytes:
    extra = "" if after is None else f"Retry-After: {after}\r\n"
    return reply(status, {"error": {"message": "slow down"}}, extra=extra)


async def exchanged(*answers: bytes, **target: Any) -> tuple[Exchange, list[Seen]]:
    """The exchange of one request with a server that gives these answers in turn, the last one for good."""
    left = list(answers)

    async def respond(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await answering(left.pop(0) if len(left) > 1 else left[0])(seen, writer)

    exchange = Exchange()
    async with serving(respond) as server:
        options = {"url": server.url, "stream": False, **target}
        info = TargetInfo(kind="http", model="tiny")
        async with open_http(HttpTarget(**options), Workload(), info, MonotonicClock()) as session:
            await session.send(session.prepare(HELLO), exchange)
    return exchange, server.seen


async def test_a_refusal_is_final_unless_the_profile_says_otherwise() -> None:
    exchange, seen = await exchanged(busy(), GOOD)
    assert (exchange.failure, exchange.message, exchange.retries, len(seen)) == ("http_429", "slow down", 0, 1)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_request_is_sent_again_and_its_last_answer_counts(status: int) -> None:
    exchange, seen = await exchanged(busy(status), busy(status), GOOD, retry=5)
    assert (exchange.failure, exchange.status, exchange.retries) == (None, 200, 2)
    assert [one.body for one in seen] == [seen[0].body] * 3
    assert {one.connection for one in seen} == {0}  # the refusal was read to its end


async def test_a_request_is_sent_again_as_often_as_allowed_and_then_fails() -> None:
    exchange, seen = await exchanged(busy(), retry=2)
    assert (exchange.failure, exchange.message, exchange.retries, len(seen)) == ("http_429", "slow down", 2, 3)


async def test_other_failures_are_final() -> None:
    exchange, seen = await exchanged(reply(500, b""), GOOD, retry=5)
    assert (exchange.failure, exchange.retries, len(seen)) == ("http_500", 0, 1)


async def test_the_wait_is_part_of_the_request() -> None:
    began_ns = MonotonicClock().now_ns()
    exchange, _ = await exchanged(busy(after="1"), GOOD, retry=1)
    assert exchange.end_ns is not None
    assert exchange.end_ns - began_ns >= NS_PER_SECOND


async def test_a_wait_beyond_the_timeout_is_not_begun() -> None:
    with anyio.fail_after(5):
        exchange, seen = await exchanged(busy(after="60"), GOOD, retry=1, timeout=Duration(10 * NS_PER_SECOND))
    assert (exchange.failure, exchange.retries, len(seen)) == ("http_429", 0, 1)


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": " 0 "}, 0.0),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),  # long ago
        ({"Retry-After": "soon"}, 1.0),
        ({"Retry-After": "-3"}, 1.0),
        ({"Retry-After": ""}, 1.0),
        ({}, 1.0),
    ],
)
def test_the_wait_is_the_one_told_or_a_second(told: dict[str, str], seconds: float) -> None:
    assert seconds_to_wait(503, told) == seconds


def test_a_date_is_waited_for() -> None:
    told = {"Retry-After": email.utils.formatdate(time.time() + 60, usegmt=True)}
    wait = seconds_to_wait(429, told)
    assert wait is not None
    assert 50 < wait <= 60  # dates have whole seconds


@pytest.mark.parametrize("status", [200, 400, 500, 502])
def test_other_answers_ask_for_no_retry(status: int) -> None:
    assert seconds_to_wait(status, {"Retry-After": "7"}) is None
