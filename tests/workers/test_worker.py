"""One worker on its channel, in virtual time: the test is its parent, and decides when its target dies."""

from collections import Counter
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from loadgen.errors import LoadgenError, TargetError
from loadgen.measure.outcome import Grid
from loadgen.profile import Concurrency, Constant, Fixed, Profile, SimTarget, Workload
from loadgen.profile.decoding import encode
from loadgen.targets import kinds
from loadgen.targets.base import TargetInfo
from loadgen.targets.sim import tokenizer_of_simulator
from loadgen.units import NS_PER_SECOND, Duration, Rate
from loadgen.workers.channel import ChannelClosed, memory_channels
from loadgen.workers.messages import (
    Failed,
    Finish,
    Gone,
    Grant,
    Hello,
    Jobs,
    Ready,
    Setup,
    Snapshot,
    StageStart,
    Started,
    Stop,
)
from loadgen.workers.worker import run_worker
from tests.mortal_target import ENGINE_DEAD, REASON, MortalTarget

pytestmark = pytest.mark.anyio

MS = 1_000_000
OPEN = Constant(rate=Rate(10), duration=Duration(60 * NS_PER_SECOND))
CLOSED = Concurrency(concurrency=2, duration=Duration(60 * NS_PER_SECOND))


def setup(*, slots=2, tokenization=None) -> Setup:
    workload = Workload(prompt_tokens=16, output_tokens=Fixed(value=4))
    profile = Profile(target=SimTarget(transport="in-process"), workload=workload, load=OPEN)
    return Setup(encode(profile), TargetInfo(kind="sim"), tokenization, nonce=0, slots=slots, room=8)


def stage(clock, *, slots=None) -> StageStart:
    now_ns = clock.now_ns()
    grid = Grid(now_ns, now_ns, NS_PER_SECOND)
    return StageStart(0, grid, drop=False, slots=slots, slots_from_ns=now_ns, stop_ns=None)


class Parent:
    """The other end of a worker's channel; `heard` is all that came."""

    def __init__(self, channel) -> None:
        self.channel = channel
        self.heard = []
        self.ready = anyio.Event()
        self.ended_at = None

    async def listen(self) -> None:
        try:
            while True:
                self.heard.append(await self.channel.receive())
                if isinstance(self.heard[-1], Ready):
                    self.ready.set()
        except ChannelClosed:
            self.ended_at = anyio.current_time()

    def of(self, kind) -> list:
        return [message for message in self.heard if isinstance(message, kind)]

    def ended(self) -> list[int]:
        """The indices that the snapshots told of, in order."""
        return [index for snapshot in self.of(Snapshot) for delta in snapshot.deltas for index in delta.ended]

    def accounts(self) -> Counter:
        """How many ended in which account, as the snapshots told."""
        accounts = Counter()
        for snapshot in self.of(Snapshot):
            for delta in snapshot.deltas:
                for _, account, count in delta.accounts:
                    accounts[account] += count
        return accounts


@asynccontextmanager
async def working(clock, monkeypatch, opener, given=None):
    """A worker that opens its target with `opener`, and its parent, which has said Setup and listens."""
    monkeypatch.setitem(kinds.KINDS, SimTarget, replace(kinds.KINDS[SimTarget], open=opener))
    ours, theirs = memory_channels()
    parent = Parent(ours)

    async def live() -> None:
        try:
            await run_worker(theirs, clock, 3, "the token")
        finally:
            await theirs.aclose()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(live)
        await ours.send(given or setup())
        tasks.start_soon(parent.listen)
        yield parent
        await ours.aclose()


def opening(target, closed=None):
    """An opener of this target; `closed` is set as it is closed."""

    @asynccontextmanager
    async def opener(profile, info, clock):
        try:
            yield target
        finally:
            if closed is not None:
                closed.set()

    return opener


async def test_a_worker_says_hello_then_what_only_its_target_could_tell(clock, monkeypatch):
    target = MortalTarget(clock, start_ns=7)
    async with working(clock, monkeypatch, opening(target)) as parent:
        await anyio.sleep(0.1)
        hello, ready = parent.heard[:2]
        assert isinstance(hello, Hello)
        assert (hello.token, hello.worker) == ("the token", 3)
        assert ready == Ready(10, target.opening)  # 2 slots, and room for 8 more
        await parent.channel.send(Finish())
        await anyio.sleep(1)
        assert parent.ended_at is not None


async def test_a_worker_whose_target_dies_tells_what_became_of_its_requests_then_that_it_is_gone(clock, monkeypatch):
    # Two slots, answers of 1 s: 0 and 1 end at 1 s, 2 and 3 are in flight from then on, 4 and 5 wait; 6 is not due.
    target, closed = MortalTarget(clock), anyio.Event()
    async with working(clock, monkeypatch, opening(target, closed)) as parent:
        await parent.ready.wait()
        start = clock.now_ns()
        await parent.channel.send(stage(clock))
        await parent.channel.send(Jobs(0, list(range(7)), [start + i * MS for i in range(6)] + [start + 5000 * MS]))
        await anyio.sleep(1.4)
        target.die()
        await anyio.sleep(5)
        assert sorted(parent.ended()) == [0, 1, 2, 3]
        assert sum(message.credits for message in parent.of(Grant)) == 4
        # Two ended well, two with the target; all of that was told before the worker said that it is gone.
        assert parent.accounts() == {"completed": 2, f"failed:{ENGINE_DEAD}": 2}
        assert parent.heard[-1] == Gone(REASON)
        assert closed.is_set()
        # It died 1.4 s after the beginning, and its last words took 0.5 s.
        assert parent.ended_at == pytest.approx(1.9)


@pytest.mark.parametrize("words_seconds", [0.0, 0.5])
async def test_a_worker_of_a_closed_loop_tells_every_start_before_it_says_that_it_is_gone(
    clock, monkeypatch, words_seconds
):
    target = MortalTarget(clock, words_seconds=words_seconds)
    async with working(clock, monkeypatch, opening(target)) as parent:
        await parent.ready.wait()
        await parent.channel.send(stage(clock, slots=2))
        await parent.channel.send(Jobs(0, list(range(6)), []))
        await anyio.sleep(1.0)  # 0 and 1 end now, and 2 and 3 start
        target.die()
        await anyio.sleep(5)
        started = [index for message in parent.of(Started) for index in message.indices]
        assert sorted(started) == sorted(target.sent) == sorted(parent.ended())
        assert parent.heard[-1] == Gone(REASON)


async def test_a_stop_that_comes_while_the_target_is_dying_does_not_keep_the_worker(clock, monkeypatch):
    target = MortalTarget(clock)
    async with working(clock, monkeypatch, opening(target)) as parent:
        await parent.ready.wait()
        start = clock.now_ns()
        await parent.channel.send(stage(clock))
        await parent.channel.send(Jobs(0, list(range(4)), [start + i * MS for i in range(4)]))
        await anyio.sleep(0.5)
        target.die()
        await anyio.sleep(0.1)
        await parent.channel.send(Stop(0, clock.now_ns(), clock.now_ns() + 30 * NS_PER_SECOND))
        await anyio.sleep(5)
        assert parent.heard[-1] == Gone(REASON)
        # 2 and 3 were due and waited for a slot.
        assert parent.accounts() == {f"failed:{ENGINE_DEAD}": 2, "unfinished": 2}


async def test_the_dying_words_of_a_target_wait_for_what_is_in_flight(clock, monkeypatch):
    # Request 1 notices 3 s after the death; the worker says that its target is gone when it has told of it.
    target = MortalTarget(clock, answer_seconds=60, notice_seconds=3)
    async with working(clock, monkeypatch, opening(target)) as parent:
        await parent.ready.wait()
        await parent.channel.send(stage(clock))
        await parent.channel.send(Jobs(0, [0, 1], [clock.now_ns()] * 2))
        await anyio.sleep(1)
        target.die()
        await anyio.sleep(10)
        assert sorted(parent.ended()) == [0, 1]
        assert parent.ended_at == pytest.approx(1 + 3)


@pytest.mark.parametrize(
    ("error", "usage"), [(LoadgenError("the profile is at fault"), True), (TargetError("no memory"), False)]
)
async def test_a_target_that_cannot_be_opened_is_told_with_who_is_at_fault(clock, monkeypatch, error, usage):
    @asynccontextmanager
    async def opener(profile, info, clock):
        raise error
        yield

    async with working(clock, monkeypatch, opener) as parent:
        await anyio.sleep(1)
        assert parent.heard[1:] == [Failed(str(error), usage)]
        assert parent.ended_at is not None


async def test_a_parent_that_goes_while_the_target_opens_ends_the_opening_at_once(clock, monkeypatch):
    ended_at = []

    @asynccontextmanager
    async def opener(profile, info, clock):
        try:
            await anyio.sleep(1800)
            yield MortalTarget(clock)
        finally:
            ended_at.append(anyio.current_time())

    async with working(clock, monkeypatch, opener) as parent:
        await anyio.sleep(3)
        assert ended_at == []
        await parent.channel.aclose()
        await anyio.sleep(0.1)
        assert ended_at == [pytest.approx(3)]


async def test_what_a_parent_says_just_after_the_opening_is_heard(clock, monkeypatch):
    # The channel is listened to while the target opens: what comes as that listening ends must not be lost.
    target = MortalTarget(clock)

    @asynccontextmanager
    async def opener(profile, info, clock):
        await anyio.sleep(2)
        yield target

    async with working(clock, monkeypatch, opener) as parent:
        await parent.ready.wait()
        await parent.channel.send(stage(clock))
        await parent.channel.send(Jobs(0, [0], [clock.now_ns()]))
        await anyio.sleep(3)
        assert target.sent == [0]
        assert parent.ended() == [0]


async def test_a_word_out_of_turn_while_the_target_opens_ends_the_worker(clock, monkeypatch):
    @asynccontextmanager
    async def opener(profile, info, clock):
        await anyio.sleep(1800)
        yield MortalTarget(clock)

    async with working(clock, monkeypatch, opener) as parent:
        await anyio.sleep(1)
        await parent.channel.send(Finish())
        await anyio.sleep(0.1)
        assert parent.ended_at == pytest.approx(1)


async def test_a_target_that_tells_nothing_counts_tokens_as_the_check_before_the_load_said(clock, monkeypatch):
    target = MortalTarget(clock)
    target.opening = None
    given = setup(tokenization=tokenizer_of_simulator())
    async with working(clock, monkeypatch, opening(target), given) as parent:
        await anyio.sleep(0.1)
        assert parent.of(Ready) == [Ready(10, None)]


def test_what_a_worker_says_of_its_end_survives_the_channel():
    for message in (Gone(REASON), Failed("no memory"), Failed("a wrong name", usage=True)):
        wire = msgspec.msgpack.encode(message)
        assert msgspec.msgpack.decode(wire, type=Gone | Failed) == message
