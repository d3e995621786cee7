"""Whole runs on engines in process: the command, its worker, and vLLM's own processes below it."""

import contextlib
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest
from conftest import ENGINE_ARGS

from loadgen.measure.records import Record
from loadgen.report.summary_json import read_summary
from loadgen.summary.summary import Stage
from loadgen.workers.lifeline import FOLDER_ENV
from tests.end_to_end import Ran, command, run, sets

# An engine takes 10 to 30 s to start where two cores do all.
pytestmark = pytest.mark.timeout(300)

# 0: fine; 4: the generator was late, which it may well be where an engine and its load share the cores of a machine.
RAN = (0, 4)
SHARED_MEMORY = Path("/dev/shm")
OUTPUT_TOKENS = 32


@pytest.fixture(autouse=True, scope="module")
def folders() -> Iterator[Path]:
    """Where the workers of these tests make their folders; all that is theirs is told apart by that from
    what others run on this machine."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        yield Path(folder)


@contextlib.contextmanager
def leaving_nothing(folders: Path) -> Iterator[None]:
    """At its end no process of an engine, no folder of a worker and no piece of its shared memory is there."""
    before = set(SHARED_MEMORY.iterdir())
    yield
    wait_until(lambda: not engines(folders), 20, lambda: f"left behind: {engines(folders)}")
    wait_until(lambda: left_in(folders) == set(), 5, lambda: f"left behind: {left_in(folders)}")
    if not others():
        left = set(SHARED_MEMORY.iterdir()) - before
        assert not left


@pytest.fixture(autouse=True)
def nothing_is_left(folders) -> Iterator[None]:
    """After each test; the runs that several tests look at say so themselves."""
    with leaving_nothing(folders):
        yield


def left_in(folders: Path) -> set[Path]:
    """All but what torch has compiled, which is kept for the next run."""
    return {path for path in folders.iterdir() if not path.name.startswith("torchinductor_")}


def engines(folders: Path) -> list[psutil.Process]:
    """The processes of the engines of these tests. A zombie has ended."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            ours = process.environ().get(FOLDER_ENV, "").startswith(str(folders))
            if ours and process.name().startswith("VLLM::") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def others() -> bool:
    """Whether somebody else's vLLM runs here, whose shared memory comes and goes, too."""
    return any((process.info["name"] or "").startswith("VLLM::") for process in psutil.process_iter(["name"]))


def wait_until(true: Callable[[], bool], seconds: float, words: Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, words()
        time.sleep(0.1)


def options(model: Path, **keys: object) -> list[str]:
    """A short run on engines of a model; `keys` as for `sets`."""
    args = [
        f"--set=target.engine_args.{name}={msgspec.json.encode(value).decode()}" for name, value in ENGINE_ARGS.items()
    ]
    short = sets(
        workload__prompt_tokens=32,
        workload__output_tokens=OUTPUT_TOKENS,
        load__warmup="0s",
        load__drain="30s",
        output__records=True,
    )
    return ["--model", str(model), *args, *short, *sets(**keys)]


def side_by_side(*runs: Callable[[], Ran]) -> list[Ran]:
    """Runs at the same time: an engine starts on one core and leaves the other idle."""
    with ThreadPoolExecutor(len(runs)) as threads:
        return [future.result() for future in [threads.submit(one) for one in runs]]


SWEEP = """
[target]
kind = "engine"
[workers]
processes = 2
[load]
kind = "sweep"
arrivals = "constant"
rates = [4, 8]
duration = "3s"
"""


def only_stage(ran: Ran) -> Stage:
    """The stage of a run of one, whose books balance."""
    assert ran.exit_code in RAN, ran.stdout + ran.stderr
    return balanced(ran.folder)


def balanced(folder: Path) -> Stage:
    (stage,) = read_summary(folder).stages
    assert stage.books.ended == stage.books.intended
    return stage


def records_of(folder: Path) -> list[Record]:
    return [msgspec.json.decode(line, type=Record) for line in (folder / "requests.jsonl").read_bytes().splitlines()]


# --- a run ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ran(tiny_model, tmp_path_factory, folders) -> Ran:
    """The ready profile on the tiny model: 4/s for 5 s."""
    folder = tmp_path_factory.mktemp("engine") / "run"
    short = ["--rate=4", "--duration=5s", *options(tiny_model, load__kind="constant")]
    with leaving_nothing(folders):
        return run(folder, "engine", *short, timeout=240)


def test_a_run_measures_what_it_does_over_http(ran):
    stage = only_stage(ran)
    # 5 s at 4/s.
    assert stage.books.intended == stage.books.completed == 20
    latency = stage.latency_seconds
    for name in ("ttft", "service_ttft", "tpot", "response", "service", "queued", "lateness"):
        assert getattr(latency, name).count == 20
    # One gap less than chunks, and no more chunks than tokens.
    assert 0 < latency.itl.count <= 20 * (OUTPUT_TOKENS - 1)
    assert stage.tokens.output == OUTPUT_TOKENS
    assert stage.tokens.prompt == pytest.approx(32, rel=0.02)


def test_a_run_says_what_it_ran_on_and_how_the_engine_started(ran, tiny_model):
    target = ran.summary.environment["target"]
    assert target["kind"] == "engine"
    assert target["model"] == str(tiny_model)
    assert target["max_model_len"] == ENGINE_ARGS["max_model_len"]
    (worker,) = ran.summary.generator.workers
    assert 1 < worker.target.start_seconds < 240
    assert worker.target.memory_bytes > 500e6  # the worker and the engine's core have torch loaded each
    assert "engine" in ran.stdout
    assert "started in" in ran.stdout


def test_what_the_engine_wrote_is_in_the_runs_folder_and_its_files_are_complete(ran):
    assert "EngineCore" in (ran.folder / "worker-0.log").read_text(errors="replace")
    assert {"summary.json", "report.html", "percentiles.csv", "latency.hlog"} <= {f.name for f in ran.folder.iterdir()}


@pytest.fixture(scope="module")
def swept(tiny_model, tmp_path_factory, folders) -> Ran:
    """Two rates, one after the other, on two workers: 4/s and 8/s for 3 s each."""
    folder = tmp_path_factory.mktemp("sweep")
    profile = folder / "sweep.toml"
    profile.write_text(SWEEP)
    with leaving_nothing(folders):
        return run(folder / "run", str(profile), *options(tiny_model), timeout=240)


def test_two_workers_have_an_engine_each(swept):
    workers = swept.summary.generator.workers
    assert len({worker.pid for worker in workers}) == 2
    assert all(worker.target is not None for worker in workers)
    # Each session has a prefix of its own in the ids of its requests; jobs are dealt in turn, in each stage.
    records = records_of(swept.folder)
    for stage, each in ((0, 6), (1, 12)):
        sessions = [record.request_id.rsplit("-", 1)[0] for record in records if record.stage == stage]
        assert sorted(sessions.count(session) for session in set(sessions)) == [each, each]


def test_a_sweep_keeps_its_engines_through_all_stages(swept):
    assert swept.exit_code in RAN, swept.stdout + swept.stderr
    for stage, requests in zip(swept.summary.stages, (12, 24), strict=True):
        assert stage.books.completed == stage.books.intended == stage.books.ended == requests
    assert len({record.request_id.rsplit("-", 1)[0] for record in records_of(swept.folder)}) == 2
    # An engine says once that it starts.
    for worker in (0, 1):
        log = (swept.folder / f"worker-{worker}.log").read_text(errors="replace")
        assert log.count("Initializing a V1 LLM engine") == 1


# --- what goes wrong --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running(folder: Path, profile: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        command(folder, profile, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def completions(folder: Path) -> int:
    """How many requests of a run have completed so far."""
    records = folder / "requests.jsonl"
    return records.read_bytes().count(b'"account":"completed"') if records.exists() else 0


def wait_for_load(folder: Path, process: "subprocess.Popen[str]") -> None:
    """Return when the first requests have completed, from now on, and the next are in flight."""
    wanted = completions(folder) + 4
    wait_until(lambda: completions(folder) >= wanted or process.poll() is not None, 200, lambda: "nothing completed")
    assert process.poll() is None, process.communicate()


def core(folders: Path) -> psutil.Process:
    (found,) = [process for process in engines(folders) if "EngineCore" in process.name()]
    return found


CLOSED_LOOP = """
[target]
kind = "engine"
[load]
kind = "concurrency"
concurrency = 4
requests = 40
"""


ENDLESS = {"load__requests": 10_000, "load__duration": "200s"}
"""Of a run that does not end before it is ended."""


def closed_loop(folder: Path, model: Path, **keys: object) -> list[str]:
    """Four requests in flight at all times, 40 in all, each of 400 tokens: over a second, so that a death finds four
    and a restart something to do."""
    profile = folder.with_suffix(".toml")
    profile.write_text(CLOSED_LOOP)
    return [str(profile), *options(model, **{"workload__output_tokens": 400, **keys})]


@pytest.mark.timeout(600)  # three engines are started, each within 200 s
def test_a_dead_core_fails_what_was_in_flight_and_is_started_again(tiny_model, tmp_path, folders):
    folder = tmp_path / "run"
    with running(folder, *closed_loop(folder, tiny_model)) as process:
        # Killed at once, and asked to end: then vLLM's generators end as if the answers were whole.
        for died, number in enumerate((signal.SIGKILL, signal.SIGTERM), start=1):
            wait_for_load(folder, process)
            core(folders).send_signal(number)
            wait_until(lambda died=died: failures(folder) == died * 4, 30, lambda: f"failed: {failures(folder)}")
        stdout, stderr = process.communicate(timeout=200)
    stage = balanced(folder)
    # Four each time; all others before, between and after the deaths are completed, and none of them was cut short.
    assert stage.books.failed == {"engine_dead": 8}, stdout + stderr
    assert stage.books.lost == 0
    assert stage.books.completed == 40 - 8
    whole = [record for record in records_of(folder) if record.account == "completed"]
    assert len(whole) == stage.books.completed
    assert {record.output_tokens for record in whole} == {400}
    (worker,) = read_summary(folder).generator.workers
    assert worker.restarts == 2
    assert len(worker.deaths) == 2
    assert all(death.startswith("the engine died") for death in worker.deaths)


def failures(folder: Path) -> int:
    """How many requests of a run have failed so far."""
    return (folder / "requests.jsonl").read_bytes().count(b'"account":"failed:')


def test_a_killed_worker_takes_its_engine_along_and_the_next_death_is_one_too_many(tiny_model, tmp_path, folders):
    folder = tmp_path / "run"
    with running(folder, *closed_loop(folder, tiny_model, workers__max_restarts=1)) as process:
        wait_for_load(folder, process)
        first = core(folders)
        first.parent().kill()
        wait_until(lambda: not first.is_running(), 20, lambda: "the core outlived its worker")
        wait_for_load(folder, process)  # of the worker that was started in its place
        core(folders).kill()
        stdout, stderr = process.communicate(timeout=100)
    # The run ends, with its report.
    assert process.returncode == 4, stdout + stderr
    stage = balanced(folder)
    # Four in flight, and up to a snapshot (250 ms) of ended ones.
    assert 1 <= stage.books.lost <= 8
    assert stage.books.completed > 4
    assert stage.books.failed == {"engine_dead": 4}
    assert (folder / "report.html").stat().st_size > 0


@pytest.mark.parametrize("when", ["while it starts", "under load"])
def test_engines_end_with_a_run_that_is_interrupted_or_killed(tiny_model, tmp_path, when, folders):
    interrupted, killed = tmp_path / "interrupted", tmp_path / "killed"
    # One after the other they would take twice as long.
    with (
        running(interrupted, *closed_loop(interrupted, tiny_model, **ENDLESS)) as one,
        running(killed, *closed_loop(killed, tiny_model, **ENDLESS)) as other,
    ):
        if when == "under load":
            wait_for_load(interrupted, one)
            wait_for_load(killed, other)
        else:
            wait_until(lambda: len(engines(folders)) >= 2, 200, lambda: f"engines: {engines(folders)}")
        one.send_signal(signal.SIGINT)
        other.kill()
        one.communicate(timeout=60)
        other.communicate(timeout=60)
        # Two seconds to notice, five to end in order, some to be killed; `nothing_is_left` looks at the rest.
        wait_until(lambda: not engines(folders), 15, lambda: f"left: {engines(folders)}")
    assert one.returncode == 130
    if when == "under load":
        assert balanced(interrupted).books.completed > 0


@pytest.fixture(scope="module")
def refused(tiny_model, tmp_path_factory, folders) -> list[Ran]:
    """Runs with an argument that vLLM refuses by its value, and with one that it does not have."""
    folder = tmp_path_factory.mktemp("refused")
    wrong: list[dict[str, object]] = [
        {"target__engine_args__max_model_len": 10**6},
        {"target__engine_args__max_modle_len": 10},
    ]
    runs = [
        partial(run, folder / str(place), "engine", *options(tiny_model), *sets(**keys), timeout=200)
        for place, keys in enumerate(wrong)
    ]
    with leaving_nothing(folders):
        return side_by_side(*runs)


def test_an_engine_that_does_not_come_up_is_told_in_one_line_with_exit_code_3(refused):
    ran = refused[0]
    assert ran.exit_code == 3
    assert "the engine did not start" in ran.stderr
    assert "max_model_len" in ran.stderr
    assert "Traceback" not in ran.stderr + ran.stdout
    assert len(ran.stderr.strip().splitlines()) == 1


def test_an_argument_that_vllm_does_not_have_is_refused_with_exit_code_2(refused):
    ran = refused[1]
    assert ran.exit_code == 2
    assert "target.engine_args.max_modle_len" in ran.stderr
    assert "did you mean `max_model_len`" in ran.stderr


# --- images and sound -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_media(tiny_image_model, tiny_audio_model, tmp_path_factory, folders) -> dict[str, Ran]:
    """The ready profiles of images and of sound: 4/s for 3 s each."""
    folder = tmp_path_factory.mktemp("media")
    models = {"image": tiny_image_model, "audio": tiny_audio_model}
    short = ["--rate=4", "--duration=3s"]
    runs = [
        partial(run, folder / kind, f"engine-{kind}", *short, *options(model), timeout=240)
        for kind, model in models.items()
    ]
    with leaving_nothing(folders):
        return dict(zip(models, side_by_side(*runs), strict=True))


@pytest.mark.parametrize("kind", ["image", "audio"])
def test_the_ready_profiles_of_media_run(with_media, kind):
    ran = with_media[kind]
    stage = only_stage(ran)
    assert stage.books.completed == stage.books.intended > 0
    # The tiny models make 4 tokens of an image and 25 of a second of sound, which come on top of the text's 32.
    assert stage.tokens.prompt > 32 + 3
    assert not any("tokens asked for" in warning for warning in ran.summary.verdict.warnings)
