"""Profiles read from a file that a test writes, with or without changes from the command line."""

from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import ProfileError
from loadgen.profile import Profile
from loadgen.profile.file import load_profile
from loadgen.profile.overrides import Overrides

SMALL = """
[load]
kind = "poisson"
rate = 10
duration = "10s"
"""
STEPS = """
[load]
kind = "steps"
steps = [{ kind = "poisson", rate = 1, requests = 5 }, { kind = "constant", rate = 2, requests = 5 }]
"""
SIM = '[target]\nkind = "sim"\ntransport = "in-process"\nstream = false\ntimeout = "5s"\n'
HTTP = '[target]\nkind = "http"\nurl = "http://127.0.0.1:8000"\n'
ENGINE = '[target]\nkind = "engine"\nmodel = "m"\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in an empty folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(content: str | bytes, **changes: Any) -> Profile:
    """The profile that a file of this content gives under these `Overrides`."""
    Path("p.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_profile("p.toml", Overrides(**changes))


def faults(content: str | bytes, **changes: Any) -> list[str]:
    """Why it is refused, one line each."""
    with pytest.raises(ProfileError) as caught:
        load(content, **changes)
    assert all("\n" not in fault for fault in caught.value.faults)
    return caught.value.faults


def fault(content: str | bytes, **changes: Any) -> str:
    """The one fault for which it is refused."""
    (only,) = faults(content, **changes)
    return only
