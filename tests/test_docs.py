"""The documentation names what the code has: profile keys, summary fields, failure kinds; its profiles decode, its
commands are those that there are."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
import pytest
import typer.main

from loadgen.cli.commands import app
from loadgen.measure.outcome import CANCELLED, COMPLETED, DROPPED, LOST, TIMEOUT, UNFINISHED
from loadgen.measure.records import Record
from loadgen.profile import Profile
from loadgen.profile.file import load_profile
from loadgen.profile.overrides import Overrides
from loadgen.search.rate import CONFIRM_STABLE, CONFIRM_UNSTABLE, OVERLOADING
from loadgen.search.saturate import CUTS
from loadgen.search.slo import BISECTION, DOUBLING
from loadgen.summary.summary import Summary
from loadgen.targets.http import chunks

ROOT: Final = Path(__file__).parent.parent
FORMATS: Final = ROOT / "docs" / "formats.md"
METRICS: Final = ROOT / "docs" / "metrics.md"
_TOML_BLOCK: Final = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND: Final = re.compile(r"(?:bin/|`)loadgen ((?:run|check|simulate|report|profiles|sim)\b[^`\n#&]*)")
_PLACEHOLDER: Final = re.compile(r"[A-Z]+")
_KIND: Final = re.compile(r'TransportError\(\s*"(\w+)"|\.failure, exchange\.message = "(\w+)"')


def structs_in(shape: Any) -> Iterator[type[msgspec.Struct]]:
    """The struct types that a type is made of, at any depth of unions, lists and mappings."""
    if isinstance(shape, type) and issubclass(shape, msgspec.Struct):
        yield shape
    for part in get_args(shape):
        yield from structs_in(part)


def structs_below(root: type[msgspec.Struct]) -> set[type[msgspec.Struct]]:
    """A struct and all that its fields reach."""
    found: set[type[msgspec.Struct]] = set()
    left = [root]
    while left:
        struct = left.pop()
        if struct not in found:
            found.add(struct)
            left += [inner for field in msgspec.structs.fields(struct) for inner in structs_in(field.type)]
    return found


def names_of(root: type[msgspec.Struct]) -> set[str]:
    """Every key of a struct and of what its fields reach; the tag and its values too."""
    names = set()
    for struct in structs_below(root):
        names |= {field.encode_name for field in msgspec.structs.fields(struct)}
        config = struct.__struct_config__
        if config.tag_field is not None:
            names |= {config.tag_field, str(config.tag)}
    return names


def failure_kinds() -> set[str]:
    """The constants, and the kinds that the source spells out where a request fails."""
    kinds = {chunks.PROTOCOL, chunks.SERVER_ERROR, chunks.DISCONNECT, chunks.ABORT, TIMEOUT}
    for path in (ROOT / "loadgen").rglob("*.py"):
        for found in _KIND.finditer(path.read_text(encoding="utf-8")):
            kinds.add(found[1] or found[2])
    return kinds


def unnamed(names: set[str], page: Path) -> list[str]:
    """The names that do not stand in a code span of a page."""
    text = page.read_text(encoding="utf-8")
    return sorted(name for name in names if f"`{name}`" not in text)


def toml_profiles() -> list[Any]:
    """The fenced TOML blocks of the documentation that are whole profiles."""
    return [
        pytest.param(block, id=f"{page.name}-{number}")
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
        for number, block in enumerate(_TOML_BLOCK.findall(page.read_text(encoding="utf-8")))
        if re.search(r"^\[load\]", block, re.MULTILINE)
    ]


def commands() -> list[Any]:
    """The commands of loadgen that the documentation spells out, each once, without `loadgen` itself."""
    found = {
        " ".join(command.split()): page.name
        for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
        for command in _COMMAND.findall(page.read_text(encoding="utf-8"))
    }
    return [pytest.param(command, id=f"{page}: {command}") for command, page in found.items()]


def parsed(words: list[str]) -> dict[str, Any]:
    """The arguments and options of a command, which is not run; none of a verb that is only named."""
    command: Any = typer.main.get_command(app)
    left = list(words)
    while hasattr(command, "commands"):
        command = command.commands[left.pop(0)]
    return command.make_context(command.name, left).params if left else {}


def test_every_key_of_a_profile_is_named() -> None:
    names = names_of(Profile)
    assert {"rate", "url", "num_kv_blocks", "steps", "lognormal", "p99.9"} - names == {"p99.9"}  # the walk goes deep
    assert unnamed(names, FORMATS) == []


def test_every_field_of_a_summary_is_named() -> None:
    names = names_of(Summary)
    assert {"p99.9", "ci", "deaths", "counted_by", "in_flight"} <= names
    assert unnamed(names, FORMATS) == []


def test_every_field_of_a_record_is_named() -> None:
    assert unnamed(names_of(Record), FORMATS) == []


def test_every_failure_kind_and_account_is_named() -> None:
    kinds = failure_kinds()
    assert {"connect", "tls", "request", "too_long"} <= kinds  # spelt out in the source
    assert unnamed(kinds | {COMPLETED, CANCELLED, DROPPED, LOST, UNFINISHED}, METRICS) == []


def test_every_purpose_of_a_search_and_what_cuts_one_is_named() -> None:
    purposes = {DOUBLING, OVERLOADING, CONFIRM_UNSTABLE, CONFIRM_STABLE, BISECTION}
    assert unnamed(purposes | set(CUTS), METRICS) == []


def test_there_are_profiles_in_the_documentation() -> None:
    assert len(toml_profiles()) >= 2


@pytest.mark.parametrize("block", toml_profiles())
def test_profiles_in_the_documentation_decode(block: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    path.write_text(block, encoding="utf-8")
    load_profile(str(path))


def test_there_are_commands_in_the_documentation() -> None:
    told = {str(param.values[0]).split()[0] for param in commands()}
    assert {"run", "check", "simulate", "report", "profiles", "sim"} <= told


@pytest.mark.parametrize("command", commands())
def test_commands_in_the_documentation_are_those_that_there_are(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    given = parsed(shlex.split(command))
    profile = given.get("profile")
    if profile is not None and not _PLACEHOLDER.fullmatch(profile) and profile != "profile.toml":
        short = {key: given.get(key) for key in ("target", "model", "rate", "duration")}
        load_profile(profile, Overrides(sets=tuple(given["sets"] or ()), **short))
