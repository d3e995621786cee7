"""The whole command over real HTTP and real processes, against simulated servers that behave as they are told."""

import math
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from loadgen.report.summary_json import read_summary
from tests.end_to_end import command, run, sets, simulated_server

SHORT = sets(workload__prompt_tokens=16, workload__output_tokens=4, load__warmup="0s")


def assert_balanced(summary):
    for stage in summary.stages:
        assert stage.books.ended == stage.books.intended
        assert stage.window.books.ended == stage.window.books.intended


def assert_fine(ran):
    """The run ended well, or was late on a machine that these tests keep busy, and says just that."""
    reasons = ran.summary.verdict.reasons
    assert ran.exit_code == (4 if reasons else 0), ran.stdout + ran.stderr
    assert all(reason.startswith(("Lateness p99", "Event loop lag p99")) for reason in reasons), reasons


def test_a_poisson_run_on_the_embedded_target_is_valid_balanced_and_leaves_its_files(tmp_path):
    ran = run(tmp_path / "run", "poisson", "--rate", "50", "--duration", "6s", *sets(load__warmup="0s"))
    assert_fine(ran)
    summary = ran.summary
    (stage,) = summary.stages
    assert_balanced(summary)
    assert stage.books.completed == stage.books.intended
    # A Poisson count of mean 300 stays within 5 sqrt(300) of it.
    assert abs(stage.books.intended - 300) <= 5 * math.sqrt(300)
    assert stage.latency_seconds.response.count == stage.window.books.completed
    assert stage.tokens.prompt == pytest.approx(stage.tokens.prompt_asked, rel=0.02)
    assert ran.stdout.count("VALID") == 1
    files = {file.name for file in ran.folder.iterdir()}
    assert files >= {"summary.json", "percentiles.csv", "latency.hlog", "report.html", "profile.toml", "journal"}


def test_the_resolved_profile_repeats_the_run_with_the_same_requests(tmp_path):
    options = ["--rate", "20", "--duration", "2s", *sets(output__records=True), *SHORT]
    first = run(tmp_path / "first", "constant", *options)
    again = run(tmp_path / "again", str(first.folder / "profile.toml"))
    assert_fine(first)
    assert_fine(again)
    one, two = first.summary.stages[0].tokens, again.summary.stages[0].tokens
    assert (one.prompt, one.output) == (two.prompt, two.output)
    assert first.summary.profile["workload"]["nonce"] == again.summary.profile["workload"]["nonce"]


def test_a_stall_of_the_server_shows_in_the_response_time(tmp_path):
    # 10/s for 12 s with a stall of 1.5 s: 15 of 120 requests start in it, 0.1 s apart. p95 is the 114th, the 7th
    # largest: at least 1.5 - 7 x 0.1 s.
    with simulated_server(stall_at_seconds=4, stall_seconds=1.5) as server:
        ran = run(tmp_path / "run", "constant", "--target", server.url, "--rate", "10", "--duration", "12s", *SHORT)
    (stage,) = ran.summary.stages
    assert stage.books.completed == 120
    assert stage.latency_seconds.response.p95 >= 0.8
    assert stage.latency_seconds.response.p50 < 0.2


def test_a_server_that_falls_silent_after_the_trial_leaves_all_unfinished_and_exits_with_3(tmp_path):
    with simulated_server(silent_after=1) as server:
        began = time.monotonic()
        ran = run(
            tmp_path / "run", "constant", "--target", server.url, "--rate", "10", "--duration", "3s",
            *sets(load__drain="2s"), *SHORT,
        )  # fmt: skip
        seconds = time.monotonic() - began
    assert ran.exit_code == 3
    summary = ran.summary
    assert_balanced(summary)
    assert summary.stages[0].books.unfinished == summary.stages[0].books.intended == 30
    assert seconds < 3 + 2 + 10
    assert (ran.folder / "report.html").exists()


def test_a_server_that_never_answers_ends_the_run_within_the_trials_deadline(tmp_path):
    with simulated_server(silent_after=0) as server:
        profile = tmp_path / "profile.toml"
        profile.write_text(
            f'[target]\nkind = "http"\nurl = "{server.url}"\npreflight_timeout = "2s"\n'
            '[load]\nkind = "constant"\nrate = 1\nduration = "60s"\n'
        )
        began = time.monotonic()
        ran = run(tmp_path / "run", str(profile))
    assert ran.exit_code == 3
    assert time.monotonic() - began < 2 + 8
    assert len(ran.stderr.strip().splitlines()) == 1
    assert "preflight_timeout" in ran.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--target", "http://127.0.0.1:9"], "127.0.0.1:9"),
        (["--target", "http://nonexistent.invalid"], "nonexistent.invalid"),
    ],
)
def test_a_wrong_address_is_told_in_one_line_with_exit_code_3(tmp_path, options, words):
    ran = run(tmp_path / "run", "constant", *options)
    assert ran.exit_code == 3
    assert len(ran.stderr.strip().splitlines()) == 1
    assert words in ran.stderr
    assert not (tmp_path / "run").exists()


def test_a_wrong_model_is_told_with_those_there_are(tmp_path):
    with simulated_server() as server:
        ran = run(tmp_path / "run", "constant", "--target", server.url, "--model", "llama")
    assert ran.exit_code == 3
    assert "llama" in ran.stderr
    assert "sim" in ran.stderr


def test_fifty_closed_loop_slots_over_three_processes_keep_fifty_requests_at_the_server(tmp_path):
    with simulated_server(response_delay_seconds=1.0) as server:
        ran = run(
            tmp_path / "run", "concurrency", "--target", server.url,
            *sets(load__concurrency=50, load__duration="8s", workers__processes=3), *SHORT,
        )  # fmt: skip
        stats = server.stats()
    summary = ran.summary
    (stage,) = summary.stages
    assert_balanced(summary)
    assert stats["max_concurrent"] == 50
    assert stage.concurrency.max == 50
    assert stage.concurrency.mean > 49
    assert len(summary.generator.workers) == 3


def test_a_burst_of_200_starts_200(tmp_path):
    with simulated_server(response_delay_seconds=2.0) as server:
        ran = run(
            tmp_path / "run", "offline", "--target", server.url, *sets(load__requests=200, workers__processes=2), *SHORT
        )
        stats = server.stats()
    assert ran.summary.stages[0].books.completed == 200
    assert stats["max_concurrent"] == 200


def test_failures_stand_in_their_own_account_and_not_in_the_latencies(tmp_path):
    # Of 400 requests 5 % are answered 503 at once: within 5 sqrt(400 x .05 x .95) = 22 of 20.
    with simulated_server(error_rate=0.05, seed=3) as server:
        ran = run(
            tmp_path / "run", "constant", "--target", server.url, "--rate", "100", "--duration", "4s",
            *SHORT,
        )  # fmt: skip
    (stage,) = ran.summary.stages
    failed = stage.books.failed["http_503"]
    assert 0 < failed <= 42
    assert stage.books.completed + failed == stage.books.intended == 400
    assert stage.latency_seconds.response.count == stage.books.completed
    assert stage.latency_seconds.failed["http_503"].count == failed


def test_a_server_that_refuses_fields_of_vllm_is_loaded_without_them(tmp_path):
    with simulated_server(reject_fields=("ignore_eos", "min_tokens")) as server:
        ran = run(tmp_path / "run", "constant", "--target", server.url, "--rate", "20", "--duration", "2s", *SHORT)
    assert_fine(ran)
    assert ran.summary.stages[0].books.completed == 40
    assert any("ignore_eos" in warning for warning in ran.summary.verdict.warnings)


def command_line(process: psutil.Process) -> list[str]:
    """Its words; none of a process that has just ended, as one that looks for GPUs does."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def workers_of(process: subprocess.Popen, count: int) -> list[psutil.Process]:
    """The worker processes, once they all are there."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        children = psutil.Process(process.pid).children()
        workers = [child for child in children if "loadgen.workers.worker" in command_line(child)]
        if len(workers) == count:
            return workers
        time.sleep(0.05)
    raise AssertionError(f"no {count} workers came; exit code {process.poll()}")


def test_a_killed_worker_is_named_and_started_again_and_the_books_still_balance(tmp_path):
    folder = tmp_path / "run"
    with simulated_server(response_delay_seconds=0.5) as server:
        options = [
            "--target", server.url, "--rate", "100", "--duration", "8s",
            *sets(workers__processes=2), *SHORT,
        ]  # fmt: skip
        with subprocess.Popen(
            command(folder, "constant", *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            victim = workers_of(process, 2)[0]
            time.sleep(3)
            os.kill(victim.pid, signal.SIGKILL)
            process.communicate(timeout=60)
    summary = read_summary(folder)
    (stage,) = summary.stages
    assert_balanced(summary)
    # 50/s at that worker: 25 in flight at half a second each, and up to a snapshot (250 ms) of ended ones.
    assert 10 <= stage.books.lost <= 60
    assert stage.books.completed == stage.books.intended - stage.books.lost
    assert stage.books.intended == 800
    (killed,) = [worker for worker in summary.generator.workers if worker.restarts]
    assert "SIGKILL" in killed.deaths[0]
    assert any("SIGKILL" in warning for warning in summary.verdict.warnings)


def test_asking_far_more_than_the_generator_can_do_is_invalid_and_names_the_bottleneck(tmp_path):
    ran = run(
        tmp_path / "run", "constant", "--rate", "60000", "--duration", "3s",
        *sets(target__transport="in-process", load__drain="3s", workers__processes=1), *SHORT,
    )  # fmt: skip
    assert ran.exit_code == 4, ran.stdout + ran.stderr
    summary = ran.summary
    assert not summary.verdict.valid
    assert any("worker" in reason.lower() or "parent" in reason.lower() for reason in summary.verdict.reasons)
    assert_balanced(summary)


@pytest.mark.parametrize("signals", [1, 2])
def test_ctrl_c_once_drains_and_twice_cancels_and_either_way_there_is_a_report(tmp_path, signals):
    folder = tmp_path / "run"
    with (
        simulated_server(response_delay_seconds=2.0 if signals == 1 else 8.0) as server,
        subprocess.Popen(
            command(folder, "constant", "--target", server.url, "--rate", "20", "--duration", "60s", *SHORT),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        workers_of(process, 1)
        time.sleep(3)
        for _ in range(signals):
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        process.communicate(timeout=30)
    assert process.returncode == 130
    summary = read_summary(folder)
    assert_balanced(summary)
    assert summary.interrupted
    books = summary.stages[0].books
    assert 0 < books.intended < 200
    assert (books.completed if signals == 1 else books.cancelled) == books.intended


def test_a_run_killed_outright_can_be_reported_from_what_it_left(tmp_path):
    folder = tmp_path / "run"
    with simulated_server() as server:
        options = ["--target", server.url, "--rate", "50", "--duration", "60s", *SHORT]
        with subprocess.Popen(command(folder, "constant", *options), stdout=subprocess.DEVNULL) as process:
            workers = workers_of(process, 1)
            time.sleep(4)
            process.kill()
        _, alive = psutil.wait_procs(workers, timeout=10)
        assert not alive, "a worker outlived its run"
    done = subprocess.run(
        [*command(folder, "x")[:3], "report", str(folder)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    summary = read_summary(folder)
    assert summary.stages[0].books.completed >= 50
    assert (folder / "report.html").exists()


def test_a_taken_port_of_the_simulator_is_told_in_one_line():
    with simulated_server() as server:
        port = server.url.rpartition(":")[2]
        serve = [sys.executable, "-m", "loadgen.cli.commands", "sim", "serve", "--port", port]
        done = subprocess.run(serve, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert port in done.stderr


def child_of(process: subprocess.Popen, module: str) -> psutil.Process:
    """The child process that runs a module, once it is there."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        for child in psutil.Process(process.pid).children():
            if module in command_line(child):
                return child
        time.sleep(0.05)
    raise AssertionError(f"{module} did not come; exit code {process.poll()}")


def test_ctrl_c_before_the_load_has_begun_ends_at_once(tmp_path):
    with (
        simulated_server(silent_after=0) as server,
        subprocess.Popen(
            command(tmp_path / "run", "constant", "--target", server.url), stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        while server.stats()["total_requests"] == 0:  # the trial request is under way
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        process.communicate(timeout=30)
    assert process.returncode == 130
    assert time.monotonic() - began < 5  # and not the ten seconds of the trial


def test_an_embedded_server_that_hangs_costs_the_run_no_report(tmp_path):
    folder = tmp_path / "run"
    options = ["--rate", "10", "--duration", "3s", *sets(load__drain="2s"), *SHORT]
    with subprocess.Popen(command(folder, "constant", *options), stdout=subprocess.PIPE, text=True) as process:
        workers_of(process, 1)
        server = child_of(process, "loadgen.sim.api.server")
        time.sleep(1)
        server.send_signal(signal.SIGSTOP)
        process.communicate(timeout=60)
    books = read_summary(folder).stages[0].books
    assert books.ended == books.intended == 30
    assert books.unfinished > 0
    assert not server.is_running()
