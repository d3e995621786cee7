"""Whole runs on engines in process: the command, its worker, and vLLM's own processes below it."""

import contextlib
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from conftest import ENGINE_ARGS

from loadgen.metrics.records import Record
from loadgen.metrics.summary import Stage
from loadgen.report.files import read_summary
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


@pytest.fixture(autouse=True)
def nothing_is_left(folders) -> Iterator[None]:
    """After each test no process of an engine, no folder of a worker and no piece of its shared memory is there."""
    before = set(SHARED_MEMORY.iterdir())
    yield
    wait_until(lambda: not engines(folders), 20, lambda: f"left behind: {engines(folders)}")
    wait_until(lambda: left_in(folders) == set(), 5, lambda: f"left behind: {left_in(folders)}")
    if not others():
        left = set(SHARED_MEMORY.iterdir()) - before
        assert not left


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


SWEEP = """
[target]
kind = "engine"
[load]
kind = "sweep"
concurrency = [1, 2]
requests = 4
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
    return run(folder, "engine", "--rate=4", "--duration=5s", *options(tiny_model, load__kind="constant"), timeout=240)


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


def test_two_workers_have_an_engine_each(tiny_model, tmp_path):
    two = options(tiny_model, workers__processes=2, load__kind="constant")
    ran = run(tmp_path / "run", "engine", "--rate", "8", "--duration", "5s", *two, timeout=240)
    stage = only_stage(ran)
    assert stage.books.completed == stage.books.intended == 40
    workers = ran.summary.generator.workers
    assert len({worker.pid for worker in workers}) == 2
    assert all(worker.target is not None for worker in workers)
    # Each session has a prefix of its own in the ids of its requests; jobs are dealt in turn.
    sessions = [record.request_id.rsplit("-", 1)[0] for record in records_of(ran.folder)]
    assert sorted(sessions.count(session) for session in set(sessions)) == [20, 20]


def test_a_sweep_keeps_its_engine_through_all_stages(tiny_model, tmp_path):
    profile = tmp_path / "sweep.toml"
    profile.write_text(SWEEP)
    ran = run(tmp_path / "run", str(profile), *options(tiny_model), timeout=240)
    assert ran.exit_code in RAN, ran.stdout + ran.stderr
    assert [stage.books.completed for stage in ran.summary.stages] == [4, 4]
    # One engine says once that it starts.
    assert (ran.folder / "worker-0.log").read_text(errors="replace").count("Initializing a V1 LLM engine") == 1


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


def wait_for_load(folder: Path, process: "subprocess.Popen[str]") -> None:
    """Return when the first requests have completed and the next are in flight."""

    def completed() -> bool:
        records = folder / "requests.jsonl"
        return records.exists() and records.read_bytes().count(b"\n") >= 4

    wait_until(lambda: completed() or process.poll() is not None, 200, lambda: "nothing completed")
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


def closed_loop(folder: Path, model: Path, **keys: object) -> list[str]:
    """Four requests in flight at all times, 40 in all, each of 400 tokens: over a second, so that a death finds four
    and a restart something to do."""
    profile = folder.with_suffix(".toml")
    profile.write_text(CLOSED_LOOP)
    return [str(profile), *options(model, **{"workload__output_tokens": 400, **keys})]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_a_dead_core_fails_what_was_in_flight_and_is_started_again(tiny_model, tmp_path, number, folders):
    folder = tmp_path / "run"
    with running(folder, *closed_loop(folder, tiny_model)) as process:
        wait_for_load(folder, process)
        core(folders).send_signal(number)
        stdout, stderr = process.communicate(timeout=200)
    stage = balanced(folder)
    assert stage.books.failed == {"engine_dead": 4}, stdout + stderr
    assert stage.books.lost == 0
    # Before the death and after the restart; none of them was cut short.
    whole = [record for record in records_of(folder) if record.account == "completed"]
    assert len(whole) == stage.books.completed > 4
    assert {record.output_tokens for record in whole} == {400}
    (worker,) = read_summary(folder).generator.workers
    assert worker.restarts == 1
    (death,) = worker.deaths
    assert death.startswith("the engine died")


def test_an_engine_that_dies_too_often_ends_the_run_with_its_report(tiny_model, tmp_path, folders):
    folder = tmp_path / "run"
    with running(folder, *closed_loop(folder, tiny_model, workers__max_restarts=0)) as process:
        wait_for_load(folder, process)
        core(folders).kill()
        stdout, stderr = process.communicate(timeout=100)
    assert process.returncode == 4, stdout + stderr
    stage = balanced(folder)
    assert stage.books.failed == {"engine_dead": 4}
    assert (folder / "report.html").stat().st_size > 0


def test_a_killed_worker_takes_its_engine_along_and_is_started_again(tiny_model, tmp_path, folders):
    folder = tmp_path / "run"
    with running(folder, *closed_loop(folder, tiny_model)) as process:
        wait_for_load(folder, process)
        first = core(folders)
        first.parent().kill()
        wait_until(lambda: not first.is_running(), 20, lambda: "the core outlived its worker")
        process.communicate(timeout=200)
    stage = balanced(folder)
    # Four in flight, and up to a snapshot (250 ms) of ended ones.
    assert 1 <= stage.books.lost <= 8
    assert stage.books.completed > 4


@pytest.mark.parametrize("when", ["while it starts", "under load"])
def test_ctrl_c_ends_the_engine(tiny_model, tmp_path, when, folders):
    folder = tmp_path / "run"
    with running(folder, *closed_loop(folder, tiny_model)) as process:
        if when == "under load":
            wait_for_load(folder, process)
        else:
            wait_until(lambda: bool(engines(folders)), 200, lambda: "no engine was started")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    if when == "under load":
        assert balanced(folder).books.completed > 0


@pytest.mark.parametrize("when", ["while it starts", "under load"])
def test_engines_do_not_outlive_a_run_that_is_killed(tiny_model, tmp_path, when, folders):
    folder = tmp_path / "run"
    with running(folder, *closed_loop(folder, tiny_model)) as process:
        if when == "under load":
            wait_for_load(folder, process)
        else:
            wait_until(lambda: bool(engines(folders)), 200, lambda: "no engine was started")
        process.kill()
        process.communicate(timeout=60)
        # Two seconds to notice, five to end in order, some to be killed; `nothing_is_left` looks at the rest.
        wait_until(lambda: not engines(folders), 15, lambda: f"left: {engines(folders)}")


def test_an_engine_that_does_not_come_up_is_told_in_one_line_with_exit_code_3(tmp_path, tiny_model):
    ran = run(
        tmp_path / "run", "engine", *options(tiny_model), *sets(target__engine_args__max_model_len=10**6), timeout=200
    )
    assert ran.exit_code == 3
    assert "the engine did not start" in ran.stderr
    assert "max_model_len" in ran.stderr
    assert "Traceback" not in ran.stderr + ran.stdout
    assert len(ran.stderr.strip().splitlines()) == 1


def test_an_argument_that_vllm_does_not_have_is_refused_with_exit_code_2(tmp_path, tiny_model):
    ran = run(
        tmp_path / "run", "engine", *options(tiny_model), *sets(target__engine_args__max_modle_len=10), timeout=200
    )
    assert ran.exit_code == 2
    assert "target.engine_args.max_modle_len" in ran.stderr
    assert "did you mean `max_model_len`" in ran.stderr


# --- images and sound -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["image", "audio"])
def test_the_ready_profiles_of_media_run(tiny_image_model, tiny_audio_model, tmp_path, kind):
    model = tiny_image_model if kind == "image" else tiny_audio_model
    ran = run(tmp_path / "run", f"engine-{kind}", "--rate=4", "--duration=3s", *options(model), timeout=240)
    stage = only_stage(ran)
    assert stage.books.completed == stage.books.intended > 0
    # The tiny models make 4 tokens of an image and 25 of a second of sound, which come on top of the text's 32.
    assert stage.tokens.prompt > 32 + 3
    assert not any("tokens asked for" in warning for warning in ran.summary.verdict.warnings)
