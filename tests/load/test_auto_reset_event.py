import anyio
import pytest

from loadgen.load.producer import AutoResetEvent


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.anyio
async def test_one_wait_ends_at_whatever_happens_first() -> None:
    wake, once, often = AutoResetEvent(), anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wake.set_after, once.wait)
        tasks.start_soon(wake.set_after, often.wait)
        await anyio.wait_all_tasks_blocked()
        with anyio.move_on_after(0) as early:
            await wake.wait()
        assert early.cancelled_caught
        often.set()
        with anyio.fail_after(5):
            await wake.wait()
        once.set()
        with anyio.fail_after(5):
            await wake.wait()


@pytest.mark.anyio
async def test_what_rang_before_the_wait_is_heard_once() -> None:
    wake = AutoResetEvent()
    await wake.set_after(anyio.lowlevel.checkpoint)
    await wake.set_after(anyio.lowlevel.checkpoint)
    with anyio.fail_after(5):
        await wake.wait()
    with anyio.move_on_after(0) as second:
        await wake.wait()
    assert second.cancelled_caught


@pytest.mark.anyio
async def test_what_happens_again_rings_again() -> None:
    send, receive = anyio.create_memory_object_stream[None](0)
    wake = AutoResetEvent()
    async with send, receive, anyio.create_task_group() as tasks:
        tasks.start_soon(wake.set_after_each, receive.receive)
        for _ in range(3):
            await send.send(None)
            with anyio.fail_after(5):
                await wake.wait()
        tasks.cancel_scope.cancel()
