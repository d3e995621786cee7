import anyio
import pytest

from loadgen.load.halt import Halt


def test_who_halts_the_run_halts_its_stages() -> None:
    run = Halt()
    stage = run.child()
    run.ask("interrupted", "said somebody")
    assert (stage.reason, stage.message) == ("interrupted", "said somebody")


def test_who_halts_a_stage_halts_neither_the_run_nor_another_stage() -> None:
    run = Halt()
    one, other = run.child(), run.child()
    one.ask("decided")
    assert (one.reason, other.reason, run.reason) == ("decided", None, None)


def test_a_stage_of_a_run_that_was_halted_is_halted_from_its_beginning() -> None:
    run = Halt()
    run.ask("failure", "no worker is left")
    assert run.child().reason == "failure"


def test_a_stage_that_is_over_hears_no_more() -> None:
    run = Halt()
    stage = run.child()
    run.release(stage)
    run.ask("interrupted")
    assert stage.reason is None


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.anyio
async def test_asking_twice_insists_in_every_stage(anyio_backend: str) -> None:
    run = Halt()
    stage = run.child()
    run.ask("interrupted")
    with anyio.move_on_after(0):
        await stage.insisted()
        pytest.fail("nobody insisted yet")
    run.ask("interrupted")
    with anyio.fail_after(1):
        await stage.asked()
        await stage.insisted()
