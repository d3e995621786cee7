"""The rules of the house that a machine can check (docs/design.md). The rooms say themselves what they import."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "loadgen"
DESIGN = (PACKAGE.parent / "docs" / "design.md").read_text(encoding="utf-8")

MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
GROUND = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
"""The modules at the root, which every room may import."""
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
PACKAGES = sorted(path.parent for path in PACKAGE.glob("*/**/__init__.py"))

SAYS = re.compile(r"^Imports: ([a-z, ]+?)(?: \(.*\))?\. Begin with `(\w+\.py)`\.$", re.MULTILINE)
"""What the docstring of every package says of the other rooms that it imports, and of where one begins to read."""


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


NAMES = {name_of(path) for path in MODULES}


def imports(path: Path) -> set[str]:
    """The modules of ours that a module imports, at its top or later."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "loadgen":
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in NAMES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("loadgen.")}
    return found - {"loadgen"}  # the door, which imports what is asked of it when it is asked


def room(module: str) -> str:
    """`loadgen.load.arrivals` is in `load`."""
    return module.split(".")[1]


def cycle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def rooms_imported(paths: Iterable[Path], own: str) -> set[str]:
    return {room(module) for path in paths for module in imports(path)} - GROUND - {own}


def said_of(package: Path) -> tuple[set[str], str]:
    """The rooms that a package says it imports, and the file with which it says one begins."""
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    said = SAYS.search(docstring)
    assert said is not None, f"{name_of(package / '__init__.py')} does not say what it imports and where to begin"
    return set() if said[1] == "nothing" else set(said[1].split(", ")), said[2]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: name_of(path / "__init__.py"))
def test_a_package_says_which_rooms_it_imports_and_where_to_begin(package: Path) -> None:
    said, begin = said_of(package)
    assert said == rooms_imported(package.rglob("*.py"), package.relative_to(PACKAGE).parts[0])
    assert (package / begin).exists()


def test_no_room_imports_one_that_imports_it() -> None:
    assert cycle({name: rooms_imported((PACKAGE / name).rglob("*.py"), name) for name in ROOMS}) == []


def test_no_file_imports_one_that_imports_it() -> None:
    assert cycle({name_of(path): imports(path) for path in MODULES}) == []


def test_a_circle_would_be_seen() -> None:
    assert cycle({"a": ["b"], "b": ["c"], "c": ["a"]}) != []


def test_the_ground_knows_no_room_and_is_small() -> None:
    assert {room(module) for name in GROUND for module in imports(PACKAGE / f"{name}.py")} <= GROUND
    assert len(GROUND) + 1 <= 8


def test_the_plan_of_the_design_names_every_room_and_the_ground_top_down() -> None:
    plan = re.findall(r"^\| `(\w+)/` \|", DESIGN, re.MULTILINE)
    assert sorted(plan) == ROOMS
    assert re.findall(r"^\| ground \| (.*?) \|", DESIGN, re.MULTILINE) == [" ".join(f"`{m}`" for m in sorted(GROUND))]
    for place, name in enumerate(plan):
        above = said_of(PACKAGE / name)[0] & set(plan[:place])
        assert not above, f"{name} imports {above}, which the plan shows above it"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_what_it_is_and_is_not_too_long(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(source)), f"{path.name} has no docstring"
    assert len(source.splitlines()) <= 400


def test_nothing_is_called_utils_helpers_common_or_manager() -> None:
    assert not {path.stem for path in MODULES} & {"utils", "helpers", "common", "manager", "util", "misc"}


def test_the_command_line_imports_nothing_heavy_before_a_verb_is_used() -> None:
    code = "import sys, loadgen.cli.commands; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "aiohttp", "anyio", "plotly", "jinja2", "hdrh"} & set(loaded)
