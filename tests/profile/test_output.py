import datetime
from pathlib import Path

import pytest

from loadgen.errors import ProfileError
from loadgen.profile.output import Output, resolve_dir
from tests.profile.reading import SMALL, fault

STARTED = datetime.datetime(2026, 1, 31, 23, 59, 58)


@pytest.mark.parametrize(("records", "texts", "lines"), [(0, 0, False), (1, 0, True), (0, 1, True), (1, 1, True)])
def test_texts_are_kept_in_a_line_for_each_request(records: int, texts: int, lines: bool) -> None:
    assert Output(records=bool(records), texts=bool(texts)).lines is lines


def test_a_runs_folder_has_its_name_and_time() -> None:
    assert resolve_dir("runs/{name}-{time}", "poisson", STARTED) == Path("runs/poisson-20260131-235958")


def test_a_runs_folder_may_have_no_placeholder() -> None:
    assert resolve_dir("out", "poisson", STARTED) == Path("out")


@pytest.mark.parametrize(
    ("name", "safe"),
    [("a/b", "a-b"), ("../../etc", "etc"), ("..", "run"), ("", "run"), ("my run: 5", "my-run-5"), ("été", "été")],
)
def test_a_runs_folder_is_made_safe_from_its_name(name: str, safe: str) -> None:
    assert resolve_dir("runs/{name}", name, STARTED) == Path("runs") / safe


@pytest.mark.parametrize("pattern", ["runs/{nam}", "{", "}", "{name.x}", "{name!z}", "{0}", "{}", "{name:d}", ""])
def test_a_pattern_that_cannot_be_filled_is_refused_before_anything_starts(pattern: str) -> None:
    expected = f'output.dir = "{pattern}": allowed: a path, with the placeholders {{name}} and {{time}}'
    assert fault(SMALL, sets=(f'output.dir="{pattern}"',)) == expected
    with pytest.raises(ProfileError):
        resolve_dir(pattern, "x", STARTED)
