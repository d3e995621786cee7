"""Sweeps, grids, searches and going on with them: the whole command over real HTTP and real processes, some of which
die on the way."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from io import StringIO

from rich.console import Console

from loadgen.report.console import render_summary
from loadgen.report.summary_json import read_summary
from tests.end_to_end import QUICK, command, run, simulated_server

HEAD = """
name = "sweep"
[workload]
prompt_tokens = 16
output_tokens = 4
[output]
records = true
"""
SWEEP = """
[load]
kind = "sweep"
arrivals = "constant"
rates = [10, 20, 30]
duration = "3s"
"""
OF_THE_GENERATOR = re.compile(r"Stage .*: (lateness p99|event loop lag p99|only \d+ of \d+ requests)|^(Lateness|Event)")


def profile(tmp_path, *parts):
    """A profile's file of these parts."""
    path = tmp_path / "profile.toml"
    path.write_text("\n".join((HEAD, *parts)))
    return str(path)


def target(url, *keys):
    return "\n".join(("[target]", 'kind = "http"', f'url = "{url}"', *keys))


def loadgen(*arguments, timeout=60):
    """The command, to its end."""
    words = [sys.executable, "-m", "loadgen.cli.commands", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout)


def assert_fine(code, summary):
    """All went well, or the generator was late on a machine that these tests keep busy, and that is all."""
    reasons = summary.verdict.reasons
    assert code == (4 if reasons else 0)
    assert all(OF_THE_GENERATOR.match(reason) for reason in reasons), reasons


def assert_refused(done, *words):
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert all(word in line for word in words), line


def assert_balanced(summary):
    for stage in summary.stages:
        assert stage.books.ended == stage.books.intended
        assert stage.window.books.ended == stage.window.books.intended


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def running(folder, profile, *options):
    """A run in a process of its own, which is ended if the test does not see to it."""
    words = command(folder, profile, "--quiet", *options)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(what, seconds=30):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)


def wait_for_stage(folder, number):
    """Until a stage has measured something."""
    path = folder / "journal" / f"stage-{number:04}.msgpack"
    wait_for(lambda: path.exists() and path.stat().st_size > 1000)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def server_at(port):
    """A simulated server at a port, so that it can come back there."""
    words = [sys.executable, "-m", "loadgen.cli.commands", "sim", "serve", "--port", str(port)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


# --- going on ---------------------------------------------------------------------------------------------------------


def test_a_sweep_killed_in_its_second_stage_is_gone_on_with_and_nothing_is_lost_or_there_twice(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    monkeypatch.setenv("KEY_OF_THE_TEST", "a-secret-to-be-kept")
    with simulated_server() as server:
        file = profile(tmp_path, SWEEP, target(server.url, 'api_key_env = "KEY_OF_THE_TEST"'))
        with running(folder, file) as process:
            wait_for_stage(folder, 1)
            process.send_signal(signal.SIGSTOP)
            going_on = loadgen("run", "--resume", folder)
            process.kill()
        assert_refused(going_on, "still going on")

        assert loadgen("report", folder).returncode == 0
        killed = read_summary(folder)
        assert [stage.ended_by for stage in killed.stages] == ["duration", "killed"]
        assert not killed.verdict.valid

        done = loadgen("run", "--resume", folder, "--quiet")
        summary = read_summary(folder)
        assert_fine(done.returncode, summary)
        assert_balanced(summary)
        # Equal gaps at 10, 20 and 30/s for 3 s.
        assert [stage.books.completed for stage in summary.stages] == [30, 60, 90]
        lines = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
        stages = [line["stage"] for line in sorted(lines, key=lambda line: line["index"])]
        assert stages == [0] * 30 + [1] * 60 + [2] * 90
        assert len({line["index"] for line in lines}) == 180
        # The log was made again from the journal: every answer of every stage is in it, once.
        assert samples_of("response", folder) == 180

        before = files_of(folder)
        assert loadgen("run", "--resume", folder, "--quiet").returncode == done.returncode
    assert files_of(folder) == before
    assert not any(b"a-secret-to-be-kept" in content for content in before.values())


def samples_of(metric, folder):
    """How many samples of a metric `latency.hlog` holds."""
    from hdrh.histogram import HdrHistogram

    found = [line.split(",") for line in (folder / "latency.hlog").read_text().splitlines() if "Tag=" in line]
    return sum(HdrHistogram.decode(f[-1]).get_total_count() for f in found if f[0] == f"Tag={metric}")


def test_only_the_run_of_the_profile_that_it_began_with_is_gone_on_with_and_a_refusal_changes_nothing(tmp_path):
    folder = tmp_path / "run"
    with simulated_server() as server:
        file = profile(tmp_path, SWEEP.replace("3s", "1s"), target(server.url))
        with running(folder, file) as process:
            wait_for_stage(folder, 1)
            process.kill()
    left = files_of(folder)
    own = folder / "profile.toml"
    own.write_text(own.read_text().replace("seed = 1", "seed = 2"))
    assert_refused(loadgen("run", "--resume", folder), "changed: workload.seed")
    own.write_bytes(left[own])
    unreachable = loadgen("run", "--resume", folder)  # the server is gone
    assert (unreachable.returncode, len(unreachable.stderr.strip().splitlines())) == (3, 1)
    assert files_of(folder) == left


def test_a_target_of_a_grid_that_is_down_does_not_lose_the_others_and_is_measured_once_it_is_up(tmp_path):
    folder, port = tmp_path / "run", free_port()
    load = '[load]\nkind = "constant"\nrate = 20\nduration = "1s"'
    with simulated_server() as server:
        second = f"http://127.0.0.1:{port}"
        grid = f'[[sweep]]\nkey = "target.url"\nvalues = ["{server.url}", "{second}"]'
        ran = run(folder, profile(tmp_path, load, target(server.url), grid), "--quiet")
        assert ran.exit_code == 3
        assert len(ran.stderr.strip().splitlines()) == 1
        assert second.removeprefix("http://") in ran.stderr
        assert [stage.books.completed for stage in ran.summary.stages] == [20]
        assert ran.summary.failure is not None
        with server_at(port):
            done = loadgen("run", "--resume", folder, "--quiet")
    summary = read_summary(folder)
    assert_fine(done.returncode, summary)
    assert [stage.settings["target.url"] for stage in summary.stages] == [server.url, second]
    assert [stage.books.completed for stage in summary.stages] == [20, 20]


def test_a_server_that_dies_in_the_second_stage_and_is_back_in_the_third_costs_no_other_stage(tmp_path):
    folder, port = tmp_path / "run", free_port()
    with server_at(port):
        file = profile(tmp_path, SWEEP, target(f"http://127.0.0.1:{port}"))
        with running(folder, file) as process:
            wait_for_stage(folder, 1)
            raise_server = server_at(port)
            kill_listener(port)
            with raise_server:  # its start takes some of the second stage
                process.communicate(timeout=60)
    first, second, third = read_summary(folder).stages
    assert_balanced(read_summary(folder))
    assert (first.books.completed, first.books.failures) == (30, 0)
    assert second.books.failures > 0
    assert third.books.completed > 0
    assert {"connect", "disconnect"} >= set(second.books.failed) | set(third.books.failed)


def kill_listener(port):
    """End the server of this test at a port."""
    import psutil

    (server,) = [
        child
        for child in psutil.Process().children()
        if ["--port", str(port)] == child.cmdline()[-2:] and "serve" in child.cmdline()
    ]
    server.kill()
    server.wait()


# --- grids ------------------------------------------------------------------------------------------------------------


def test_a_grid_over_servers_kinds_and_lengths_asks_each_server_for_what_its_points_say(tmp_path):
    load = '[load]\nkind = "constant"\nrate = 20\nduration = "500ms"'
    with simulated_server() as one, simulated_server() as other:
        grid = f"""
[[sweep]]
key = "target.url"
values = ["{one.url}", "{other.url}"]
[[sweep]]
key = "workload.kind"
values = ["chat", "completion", "tokenize"]
[[sweep]]
key = "workload.output_tokens"
values = [2, {{ dist = "fixed", value = 6 }}]
"""
        ran = run(tmp_path / "run", profile(tmp_path, load, target(one.url), grid), "--quiet")
        asked = [server.stats()["total_requests"] for server in (one, other)]
    assert_fine(ran.exit_code, ran.summary)
    assert_balanced(ran.summary)
    stages = ran.summary.stages
    assert [stage.books.completed for stage in stages] == [10] * 12
    assert [stage.tokens.output for stage in stages] == [2, 6, 2, 6, None, None] * 2
    # 10 for each of the four points that generate, and one trial for each of the two kinds.
    assert asked == [42, 42]
    assert len({stage.name for stage in stages}) == 12


def test_what_is_hostile_in_a_swept_value_is_text_in_every_report(tmp_path):
    values = ["<script>alert(1)</script>", "[bold red]x[/bold red] [/]\x1b[31m\nred", "long words " * 100, "short"]
    load = '[load]\nkind = "constant"\nrate = 10\nduration = "300ms"'
    grid = f'[[sweep]]\nkey = "workload.system"\nvalues = {json.dumps(values)}'
    file = profile(tmp_path, load, grid)
    ran = run(tmp_path / "run", file)
    assert_fine(ran.exit_code, ran.summary)
    assert len({stage.name for stage in ran.summary.stages}) == 4
    assert "\x1b" not in ran.stdout
    assert "[bold red]x[/bold red]" in ran.stdout
    page = (ran.folder / "report.html").read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert "default-src 'none'" in page  # so that a browser fetches nothing for it
    for columns in (80, 200):
        terminal = Console(file=StringIO(), force_terminal=True, color_system=None, width=columns)
        render_summary(ran.summary, terminal)
        assert max(map(len, terminal.file.getvalue().splitlines())) <= columns


def test_rates_from_a_fifth_to_over_a_thousand_a_second_are_what_is_sent(tmp_path):
    load = """
[load]
kind = "sweep"
arrivals = "constant"
rates = [0.2, "60/min", 1100]
duration = "5100ms"
[target]
kind = "sim"
transport = "in-process"
[target.faults]
response_delay_seconds = 0.05
"""
    ran = run(tmp_path / "run", profile(tmp_path, load), "--quiet")
    assert_fine(ran.exit_code, ran.summary)
    # The first is due at 0: at 0 and 5 s, at 0 to 5 s, and 1,100 x 5.1.
    assert [stage.books.completed for stage in ran.summary.stages] == [2, 6, 5610]


# --- ended by hand ----------------------------------------------------------------------------------------------------


def test_ctrl_c_in_a_search_leaves_its_best_answer_so_far_and_says_that_it_is_that(tmp_path):
    folder = tmp_path / "run"
    # One slot for requests of 3 steps, 30 ms: so slow that the search cannot be over.
    engine = QUICK.__class__(max_num_seqs=2, step_base_seconds=0.01)
    with simulated_server(engine) as server:
        file = profile(tmp_path, '[load]\nkind = "saturate"', target(server.url))
        with running(folder, file) as process:
            wait_for_stage(folder, 2)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
    assert process.returncode == 130
    summary = read_summary(folder)
    assert_balanced(summary)
    assert summary.interrupted
    assert summary.search.ended_by == "interrupted"
    assert summary.search.points
    assert any(summary.search.reason == warning for warning in summary.verdict.warnings)
    assert (folder / "report.html").exists()


def test_a_stage_cancelled_in_its_drain_has_not_all_that_was_asked_of_it_and_is_run_again(tmp_path):
    folder = tmp_path / "run"
    load = '[load]\nkind = "constant"\nduration = "1s"\nrate = 20'
    with simulated_server(response_delay_seconds=2.5) as server:
        with running(folder, profile(tmp_path, load, target(server.url))) as process:
            wait_for(lambda: server.stats()["total_requests"] >= 21)  # the trial's, and all 20
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
        assert process.returncode == 130
        cut = read_summary(folder)
        assert_balanced(cut)
        assert cut.stages[0].books.cancelled > 0
        assert cut.stages[0].ended_by == "interrupted"
        done = loadgen("run", "--resume", folder, "--quiet")
    summary = read_summary(folder)
    assert_fine(done.returncode, summary)
    assert not summary.interrupted
    (stage,) = summary.stages
    assert (stage.books.intended, stage.books.cancelled) == (20, 0)


def test_ctrl_c_while_a_later_target_is_opened_ends_at_once(tmp_path):
    folder = tmp_path / "run"
    load = '[load]\nkind = "constant"\nrate = 20\nduration = "1s"'
    with simulated_server() as one, simulated_server(silent_after=0) as silent:
        grid = f'[[sweep]]\nkey = "target.url"\nvalues = ["{one.url}", "{silent.url}"]'
        with running(folder, profile(tmp_path, load, target(one.url), grid)) as process:
            wait_for(lambda: silent.stats()["total_requests"] > 0)  # the trial request is under way
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            process.communicate(timeout=30)
    assert process.returncode == 130
    assert time.monotonic() - began < 5  # and not the ten seconds of the trial
    assert [stage.books.completed for stage in read_summary(folder).stages] == [20]
