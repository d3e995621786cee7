"""The rules of the house that a machine can check (docs/design.md)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "loadgen"

GROUND = {"clock", "units", "errors", "processes", "virtual_time"}
FLOORS: list[set[str]] = [
    {"metrics", "sim"},
    {"profile", "decoding"},
    {"workload", "profile_file", "profile_path", "variants"},
    {"targets"},
    {"workers", "client"},
    {"load", "report", "expectation"},
    {"results", "resume", "hold", "stage_runner"},
    {"course"},
    {"runner", "simulate", "remake"},
    {"cli", "interactive"},
]
APART = {"metrics", "sim"}
"""Modules that know nothing of ours but the ground, not even each other."""

MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def top(name: str) -> str:
    """`loadgen.load.arrivals` is in `load`."""
    return name.split(".")[1]


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("loadgen."):
            found.add(node.module)
        elif isinstance(node, ast.ImportFrom) and node.module == "loadgen":
            found |= {f"loadgen.{alias.name}" for alias in node.names if not alias.name.startswith("__")}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("loadgen.")}
    return found


def floor(module: str) -> int:
    return -1 if module in GROUND else next(number for number, names in enumerate(FLOORS) if module in names)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_only_from_its_own_floor_and_below(path):
    own = top(name_of(path))
    for imported in imports(path):
        assert floor(top(imported)) <= floor(own), f"{name_of(path)} imports {imported}, which is above it"
        if own in APART:
            assert top(imported) in GROUND | {own}, f"{name_of(path)} imports {imported}; it may know the ground alone"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_what_it_is_and_is_not_too_long(path):
    source = path.read_text()
    if path.name != "__init__.py":
        assert ast.get_docstring(ast.parse(source)), f"{path.name} has no docstring"
    assert len(source.splitlines()) <= 400


def test_nothing_is_called_utils_helpers_common_or_manager():
    assert not {path.stem for path in MODULES} & {"utils", "helpers", "common", "manager", "util", "misc"}


def test_the_command_line_imports_nothing_heavy_before_a_verb_is_used():
    code = "import sys, loadgen.cli.commands; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "aiohttp", "anyio", "plotly", "jinja2", "hdrh"} & set(loaded)
