"""The simulated model in a worker sees as much of a request as its server does."""

import anyio
import pytest

from loadgen.clock import MonotonicClock
from loadgen.measure.outcome import Exchange
from loadgen.profile import HttpTarget, SimTarget, Workload
from loadgen.sim.api.server import open_server
from loadgen.targets.base import TargetInfo
from loadgen.targets.http.session import open_http
from loadgen.targets.sim import open_sim
from loadgen.workload.prompt import PromptError
from loadgen.workload.request import Audio, Image, Message, Request, Text, Video

PNG = b"\x89PNG\r\n\x1a\n"
WAV = b"RIFF\0\0\0\0WAVE"


async def _in_worker(request: Request) -> Exchange:
    exchange = Exchange()
    async with open_sim(SimTarget(transport="in-process"), MonotonicClock()) as session:
        await session.send(session.prepare(request), exchange)
    return exchange


async def _over_http(request: Request) -> Exchange:
    exchange = Exchange()
    info = TargetInfo(kind="http", model="sim")
    async with (
        open_server() as server,
        open_http(HttpTarget(url=server.url), Workload(), info, MonotonicClock()) as session,
    ):
        await session.send(session.prepare(request), exchange)
    return exchange


@pytest.mark.parametrize(
    "content",
    ["hello there", (Image(PNG), Audio(WAV), Text("what is "), Image(PNG), Text("this?")), (Text("hel"), Text("lo"))],
)
def test_a_prompt_counts_the_same_in_a_worker_and_over_http(content):
    messages = (Message("system", "be brief"), Message("user", content))
    request = Request(index=0, messages=messages, output_tokens=2)
    counted = [anyio.run(send, request).prompt_tokens for send in (_in_worker, _over_http)]
    assert counted[0] == counted[1]
    assert counted[0] is not None


def test_video_is_refused_before_it_is_sent():
    request = Request(index=0, messages=(Message("user", (Text("look"), Video("v"))),))

    async def prepare() -> None:
        async with open_sim(SimTarget(transport="in-process"), MonotonicClock()) as session:
            with pytest.raises(PromptError, match="video is not supported"):
                session.prepare(request)

    anyio.run(prepare)
