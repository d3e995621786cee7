"""Profiles as files: finding and reading one, and writing it.

What a key may hold is said by the tables of this room and checked by `decoding`; what is put over a file stands in
`overrides`.
"""

import datetime
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, Final

import msgspec
import tomli_w

from loadgen.errors import ProfileError
from loadgen.profile import Profile
from loadgen.profile.decoding import DecodingError, decode, encode, near_miss
from loadgen.profile.grid import axes_in, grid_points, values_in
from loadgen.profile.output import dir_faults, resolve_dir
from loadgen.profile.overrides import Overrides, override
from loadgen.profile.secrets import hide_secrets

_NO_MODEL: Final = "target.model: missing"


class ReadyProfile(msgspec.Struct, frozen=True):
    """A profile that comes with loadgen; `summary` is the first comment line of its file."""

    name: str
    path: Path
    summary: str


def load_profile(source: str, overrides: Overrides | None = None) -> Profile:
    """Read the profile at the path `source`, or the ready profile of that name, with the overrides put over it.

    Raises:
        ProfileError: with every fault that was found. No fault shows a secret.
    """
    data = _parsed(source, _read(source))
    _place_dataset(data, _file_of(source).parent)
    faults = override(data, overrides or Overrides())
    _place_dataset(data, Path())
    faults += hide_secrets(data)
    try:
        profile = decode(Profile, data)
    except DecodingError as error:
        raise ProfileError(source, faults + [_with_remedy(fault) for fault in error.faults]) from None
    faults += dir_faults(profile.output.dir)
    if faults:
        raise ProfileError(source, faults)
    try:
        grid_points(profile)
    except DecodingError as error:
        raise ProfileError(source, list(error.faults)) from None
    return profile


def ready_profiles() -> list[ReadyProfile]:
    """The profiles that come with loadgen, by name."""
    paths = sorted(_ready_dir().glob("*.toml"), key=lambda path: path.stem)
    return [ReadyProfile(path.stem, path, _summary(path)) for path in paths]


def profile_toml(profile: Profile) -> str:
    """The profile as TOML, every key written; `load_profile` reads an equal profile from it."""
    return tomli_w.dumps(encode(profile))


def write_profile(profile: Profile, path: Path) -> None:
    """Write the profile as TOML; a reader sees the file whole or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(profile_toml(profile), encoding="utf-8")
    partial.replace(path)


# --- reading ----------------------------------------------------------------------------------------------------------


def run_dir(profile: Profile) -> Path:
    """The folder for a run of this profile that starts now, by local time."""
    first = path = resolve_dir(profile.output.dir, profile.name, datetime.datetime.now().astimezone())
    number = 2
    while "{time}" in profile.output.dir and path.exists():  # another run that started within the same second
        path, number = first.with_name(f"{first.name}-{number}"), number + 1
    return path


def _file_of(source: str) -> Path:
    """A profile's file, which may be a ready one by its name."""
    path = Path(source).expanduser()
    ready = {profile.name: profile.path for profile in ready_profiles()}
    return ready[source] if source in ready and not path.is_file() else path


def _read(source: str) -> bytes:
    path = _file_of(source)
    try:
        return path.read_bytes()
    except IsADirectoryError:
        inside = sorted(str(file) for file in path.glob("*.toml"))
        meant = f"; did you mean `{inside[0]}`?" if inside else ""
        raise ProfileError(source, [f"a folder, not a profile{meant}"]) from None
    except FileNotFoundError:
        ready = [profile.name for profile in ready_profiles()]
        siblings = [str(file) for file in path.parent.glob("*.toml")]
        miss = near_miss(path.stem, ready) if path.parent == Path() else None
        miss = miss or near_miss(source, siblings)
        meant = f"; did you mean `{miss}`?" if miss else ""
        raise ProfileError(source, [f"no such file, nor a ready profile ({', '.join(ready)}){meant}"]) from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise ProfileError(source, [f"cannot be read: {reason}"]) from None


def _parsed(source: str, content: bytes) -> dict[str, Any]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ProfileError(source, [f"not UTF-8 text: byte {content[error.start]:#04x} in line {line}"]) from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        lines = text.split("\n")
        end = f"at line {len(lines)}, column {len(lines[-1]) + 1}"
        reason = str(error).replace("at end of document", end)
        raise ProfileError(source, [f"not TOML: {reason}"]) from None


def _place_dataset(data: dict[str, Any], folder: Path) -> None:
    """Make the path of the dataset, and those that are swept, absolute. What a profile's file says lies beside that
    file; what the command line says, in the current folder."""
    match data:
        case {"workload": {"dataset": {"path": str(path)} as table}} if path:
            table["path"] = _placed(path, folder)
    for axis in axes_in(data):
        if axis.get("key") == "workload.dataset.path":
            axis["values"] = [_placed(value, folder) if isinstance(value, str) else value for value in values_in(axis)]


def _placed(path: str, folder: Path) -> str:
    return str((folder / Path(path).expanduser()).absolute())


def _with_remedy(fault: str) -> str:
    """The ready profiles of an engine leave its model out."""
    return f"{fault}; give it with --model MODEL" if fault.startswith(_NO_MODEL) else fault


def _ready_dir() -> Path:
    """Inside the package where loadgen was installed, beside it in a checkout."""
    package = Path(str(resources.files("loadgen")))
    installed = package / "profiles"
    return installed if installed.is_dir() else package.parent / "profiles"


def _summary(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line.lstrip("# ").rstrip() for line in lines if line.startswith("#")), "")
