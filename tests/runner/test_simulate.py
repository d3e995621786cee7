"""`loadgen simulate`: whole runs in virtual time on replicas behind a router, as a library and as a command."""

import math
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from msgspec.structs import replace

from loadgen.errors import ProfileError
from loadgen.load.halt import Halt
from loadgen.profile import (
    Concurrency,
    Constant,
    EngineTarget,
    Fixed,
    HttpTarget,
    Load,
    Poisson,
    Profile,
    SimTarget,
    Uniform,
    Workers,
    Workload,
)
from loadgen.report.summary_json import read_summary
from loadgen.runner.results import regenerate
from loadgen.runner.simulate import Fleet, simulable, simulate
from loadgen.runner.virtual_time import VirtualClock, run_virtually
from loadgen.sim.config import SimConfig, SimFaults
from loadgen.sim.engine.capacity import capacity
from loadgen.summary.summary import Summary
from loadgen.units import NS_PER_SECOND, Duration, Rate
from tests.end_to_end import Ran

SERVICE_SECONDS: Final = 0.1
# One request after the other, each of one step of exactly 0.1 s.
ONE_BY_ONE: Final = SimConfig(
    max_num_seqs=1,
    step_base_seconds=SERVICE_SECONDS,
    seconds_per_prefill_token=0.0,
    seconds_per_decode_seq=0.0,
    seconds_per_kv_token=0.0,
)
SMALL: Final = SimConfig(max_num_seqs=4, max_model_len=512)


def seconds(count: float) -> Duration:
    return Duration(round(count * NS_PER_SECOND))


def profile(load: Load, engine: SimConfig = SMALL, output: int = 16, **changes: Any) -> Profile:
    workload = Workload(prompt_tokens=16, output_tokens=Fixed(value=output))
    return Profile(name="simulated", target=SimTarget(engine=engine), workload=workload, load=load, **changes)


@pytest.fixture
def simulated(tmp_path: Path) -> Callable[..., Summary]:
    def run(profile: Profile, fleet: Fleet | None = None, meanwhile: Callable[[Halt], Any] | None = None) -> Summary:
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"

        async def main(clock: VirtualClock) -> Summary:
            halt = Halt()
            async with anyio.create_task_group() as tasks:
                if meanwhile is not None:
                    tasks.start_soon(meanwhile, halt)
                summary = await simulate(profile, clock, folder, fleet, halt=halt)
                tasks.cancel_scope.cancel()
            return summary

        return run_virtually(main)

    return run


def command(folder: Path, profile: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "loadgen.cli.commands", "simulate", profile, "--out", str(folder), *options]


def run(folder: Path, profile: str, *options: str) -> Ran:
    done = subprocess.run(command(folder, profile, *options), capture_output=True, text=True, timeout=100)
    return Ran(done.returncode, done.stdout, done.stderr, folder)


# --- what is measured -------------------------------------------------------------------------------------------------


def test_a_queue_before_one_slot_waits_as_pollaczek_and_khinchine_say(simulated):
    # M/D/1 at load 0.7: a wait of 0.7 / (2 x 0.3) = 1.17 services before each. Over 20,000 requests the mean wait has
    # a standard error of about 3 % (batch means of 10,000 in the router's own test: 4 %); this is three of 7,000's.
    load = Poisson(rate=Rate(7), duration=seconds(1000))
    (stage,) = simulated(profile(load, ONE_BY_ONE, output=1)).stages
    wait = stage.latency_seconds.response.mean - SERVICE_SECONDS
    assert wait == pytest.approx(0.7 / 0.6 * SERVICE_SECONDS, rel=0.15)
    assert stage.latency_seconds.response.min == pytest.approx(SERVICE_SECONDS, rel=2e-3)


@pytest.mark.parametrize("replicas", [1, 3])
def test_replicas_have_together_the_capacity_of_so_many(simulated, replicas):
    # Twice as many requests in flight as the engines have slots keep all of them full.
    load = Concurrency(concurrency=8 * replicas, duration=seconds(60), warmup=seconds(5))
    (stage,) = simulated(profile(load), Fleet(replicas, "least-loaded")).stages
    truth = replicas * capacity(SMALL, round(stage.tokens.prompt), 16).requests_per_second
    assert stage.throughput.requests == pytest.approx(truth, rel=0.03)


def test_all_workers_load_the_same_replicas(simulated):
    # Two workers with an engine each would have twice the capacity of the one engine that there is.
    load = Concurrency(concurrency=16, duration=seconds(60), warmup=seconds(5))
    (stage,) = simulated(profile(load, workers=Workers(processes=2))).stages
    truth = capacity(SMALL, round(stage.tokens.prompt), 16).requests_per_second
    assert stage.throughput.requests == pytest.approx(truth, rel=0.03)


def test_a_simulated_run_is_valid_on_time_and_says_nothing_of_the_generators_cost(simulated):
    summary = simulated(profile(Poisson(rate=Rate(40), duration=seconds(30))))
    assert summary.simulated
    assert summary.verdict.valid, summary.verdict.reasons
    assert summary.stages[0].latency_seconds.lateness.max == 0
    assert (summary.generator.workers, summary.generator.parent_cpu, summary.generator.loop_lag) == ([], None, None)
    assert not [warning for warning in summary.verdict.warnings if "core" in warning]


def test_the_same_profile_gives_the_same_summary_and_another_seed_another(simulated):
    load = Poisson(rate=Rate(60), duration=seconds(30))
    lengths = Workload(prompt_tokens=16, output_tokens=Uniform(min=1, max=31))
    fleet = Fleet(2, "random")
    asked = replace(profile(load), workload=lengths)
    one, again = (replace(simulated(asked, fleet), started_at="") for _ in range(2))
    assert one == again
    other = simulated(replace(asked, workload=replace(lengths, seed=7)), fleet)
    assert other.stages[0].latency_seconds != one.stages[0].latency_seconds


def test_a_run_that_is_asked_to_stop_drains_and_ends(simulated):
    async def stop_at_five(halt: Halt) -> None:
        await anyio.sleep(5.05)
        halt.ask("interrupted")

    load = Constant(rate=Rate(10), duration=seconds(3600))
    summary = simulated(profile(load), meanwhile=stop_at_five)
    (stage,) = summary.stages
    assert summary.interrupted
    # From 0.1 s on, ten a second; the stop is heeded within 0.1 s.
    assert stage.books.intended == pytest.approx(50, abs=1)
    assert stage.books.completed == stage.books.intended


# --- what it stands for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        (HttpTarget(url="http://127.0.0.1:9", stream=False, timeout=seconds(7), api_key_env="NOT_SET"), "http"),
        (EngineTarget(model="org/none", stream=False, timeout=seconds(7)), "engine"),
    ],
    ids=["http", "engine"],
)
def test_the_simulated_engine_stands_in_for_a_real_target_and_the_report_says_so(simulated, target, kind):
    asked = replace(profile(Constant(rate=Rate(5), duration=seconds(10))), target=target)
    summary = simulated(asked)
    ran = summary.profile["target"]
    assert (ran["kind"], ran["transport"], ran["stream"], ran["timeout"]) == ("sim", "in-process", False, "7s")
    assert summary.stages[0].books.completed == 50
    assert [w for w in summary.verdict.warnings if f"of kind {kind}, was not loaded" in w]


def test_faults_that_only_a_server_has_are_told_to_do_nothing():
    target = SimTarget(faults=SimFaults(error_rate=0.1, stall_at_seconds=3.0))
    _, warnings = simulable(replace(profile(Constant(rate=Rate(5), requests=5)), target=target))
    assert warnings == ["target.faults.error_rate is a simulated server's and does nothing in virtual time."]


def test_a_kind_of_workload_that_the_model_in_a_worker_has_not_is_refused():
    asked = Profile(load=Constant(rate=Rate(5), requests=5), workload=Workload(kind="rerank"))
    with pytest.raises(ProfileError, match="rerank"):
        simulable(asked)


def test_the_report_of_a_simulated_run_made_again_is_still_marked(tmp_path):
    folder = tmp_path / "run"
    asked = profile(Constant(rate=Rate(5), duration=seconds(10)))
    before = run_virtually(partial(simulate, asked, directory=folder, fleet=Fleet(2, "random")))
    again = regenerate(folder)
    assert again == before
    assert again.simulated
    assert again.environment["target"]["simulation"] == {"replicas": 2, "router": "random"}


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_runs_an_hour_and_marks_all_that_it_leaves(tmp_path):
    ran = run(
        tmp_path / "run", "constant", "--rate", "1", "--duration", "1h", "--replicas", "2", "--router", "least-loaded",
        "--set=workload.prompt_tokens=16", "--set=workload.output_tokens=4", "--set=load.warmup=0s",
    )  # fmt: skip
    assert ran.exit_code == 0, ran.stdout + ran.stderr
    assert ran.summary.simulated
    assert ran.summary.stages[0].books.completed == 3600
    assert ran.stdout.startswith("SIMULATED")
    assert ran.stderr.startswith("simulated 3,6") or ran.stderr.startswith("simulated 36")
    assert len(ran.stderr.strip().splitlines()) == 1
    files = {file.name for file in ran.folder.iterdir()}
    assert files >= {"summary.json", "percentiles.csv", "latency.hlog", "report.html", "profile.toml", "journal"}
    assert "SIMULATED" in (ran.folder / "report.html").read_text()


def test_a_quiet_simulation_says_nothing(tmp_path):
    ran = run(tmp_path / "run", "constant", "--rate", "1", "--duration", "60s", "--quiet")
    assert (ran.exit_code, ran.stdout, ran.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--router", "sticky"], "least-loaded"),
        (["--replicas", "0"], "greater than"),
        (["--set=workload.kind=rerank"], "rerank"),
    ],
)
def test_what_cannot_be_simulated_is_refused_as_usage(tmp_path, options, words):
    ran = run(tmp_path / "run", "constant", *options)
    assert ran.exit_code == 2
    assert words in ran.stderr
    assert not (tmp_path / "run").exists()


def test_a_missed_slo_sets_the_exit_code(tmp_path):
    ran = run(tmp_path / "run", "constant", "--rate", "5", "--duration", "60s", '--set=slo.ttft={p50 = "1us"}')
    assert ran.exit_code == 1, ran.stdout + ran.stderr


def test_ctrl_c_ends_a_simulation_in_order(tmp_path):
    folder = tmp_path / "run"
    with subprocess.Popen(
        command(folder, "constant", "--rate", "10", "--duration", "1000h", "--set", "load.warmup=0s"),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        # The load has begun once its first stage is in the journal.
        while process.poll() is None and not list(folder.glob("journal/stage-*")):
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    summary = read_summary(folder)
    assert summary.interrupted
    assert summary.simulated
    (stage,) = summary.stages
    assert stage.books.completed == stage.books.intended > 0
    assert math.isfinite(stage.latency_seconds.response.p50)
