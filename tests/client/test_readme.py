"""The examples of the README's section on the library run as they are written, against the simulator at vLLM's port."""

import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from loadgen.sim.api.server import open_server

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README[README.index("## As a library") : README.index("## Development")]
EXAMPLES = re.findall(r"^```python\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^python -c '.*'$", SECTION, re.MULTILINE)
PORT = 8000


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A simulated vLLM, at the port of the examples unless somebody else has it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free = probe.connect_ex(("127.0.0.1", PORT)) != 0
    serving = open_server(port=PORT if free else 0)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serving) as server:
        yield server.port


def run(code: str, port: int, folder: Path) -> str:
    """What a program prints. Where the port is another, the code says where it is."""
    if port != PORT:
        code = code.replace(f"localhost:{PORT}", f"localhost:{port}")
        code = code.replace("VLLMClient()", f'VLLMClient(base_url="http://localhost:{port}/v1")')
    ran = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_there_are_examples():
    assert len(EXAMPLES) == 3
    assert len(COMMANDS) == 1


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_runs_as_written(example, port, tmp_path):
    assert run(example, port, tmp_path).strip()


@pytest.mark.parametrize("command", COMMANDS, ids=range(len(COMMANDS)))
def test_a_command_runs_as_written(command, port, tmp_path):
    _, _, code = shlex.split(command)
    assert run(code, port, tmp_path).strip()
