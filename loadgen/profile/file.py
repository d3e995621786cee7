"""Profiles as files: finding and reading one, changing keys of it from the command line, writing it.

What a key may hold is said by `profile` and checked by `decoding`. The rules here are about files: where ready profiles
lie, what is put over them, and that no secret stands in one.
"""

import datetime
import os
import re
import string
import tomllib
from copy import deepcopy
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
import tomli_w

from loadgen.errors import LoadgenError, ProfileError
from loadgen.profile import EngineTarget, HttpTarget, Load, Profile, SimTarget
from loadgen.profile.decoding import DecodingError, decode, encode, join, looks_secret, near_miss, show
from loadgen.profile.grid import holds_secret, variants
from loadgen.profile.keys import assign, steps_of
from loadgen.workload.dataset import read_rows

_CREDENTIALS: Final = re.compile(r"^(?:[A-Za-z][A-Za-z0-9+.-]*://)?[^/?#]*@")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACEHOLDERS: Final = ("name", "time")
_BY_NAME: Final = 'name the variable that holds the key: api_key_env = "VLLM_API_KEY"'
_BY_ENVIRONMENT: Final = "set the environment variable HF_TOKEN instead, or that which vLLM reads for it"
_NO_MODEL: Final = "target.model: missing"
_ASSIGNMENT: Final = re.compile(r'((?:"[^"]*"|[^"=])+)=(.*)', re.DOTALL)
_LOADS: Final = {str(load.__struct_config__.tag): load for load in get_args(Load)}


class Overrides(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line changes in a profile: short forms first, then `sets` in their order."""

    sets: tuple[str, ...] = ()
    """`KEY=VALUE`: the value is TOML where it reads as such, else text; `load.steps.0.rate` reaches into a list."""
    target: str | None = None
    """A server's URL: the target becomes `http`, and keeps the keys that the file's target has in common with it."""
    model: str | None = None
    """`target.model`, or that of the simulated engine."""
    rate: str | float | None = None
    """For a load that has one rate."""
    duration: str | None = None


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
    faults = _override(data, overrides or Overrides())
    _place_dataset(data, Path())
    faults += _hide_secrets(data)
    try:
        profile = decode(Profile, data)
    except DecodingError as error:
        raise ProfileError(source, faults + [_with_remedy(fault) for fault in error.faults]) from None
    faults += _dir_faults(profile.output.dir)
    if faults:
        raise ProfileError(source, faults)
    try:
        variants(profile)
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


def check_environment(profile: Profile) -> list[str]:
    """What the profile, or a point of its grid, needs of this process' environment and does not find, one line each."""
    return list(dict.fromkeys(fault for point in variants(profile) for fault in _lacking(point.profile)))


def _lacking(profile: Profile) -> list[str]:
    faults = []
    variable = profile.target.api_key_env if isinstance(profile.target, HttpTarget) else None
    if variable is not None and not os.environ.get(variable):
        what = "empty" if variable in os.environ else "not set"
        faults.append(f"target.api_key_env: the environment variable {variable} is {what}")
    if profile.workload.images is not None and find_spec("PIL") is None:
        faults.append("workload.images: needs the library Pillow: pip install 'loadgen[media]'")
    if profile.workload.dataset is not None:
        faults += _dataset_faults(profile)
    in_process = isinstance(profile.target, EngineTarget)
    if in_process and profile.workload.audio is not None and find_spec("soundfile") is None:
        faults.append("workload.audio: an engine needs the library soundfile: pip install 'loadgen[media]'")
    return faults


def _dataset_faults(profile: Profile) -> list[str]:
    try:
        read_rows(profile.workload)
    except LoadgenError as error:
        return [f"workload.dataset: {error}"]
    return []


def run_dir(profile: Profile) -> Path:
    """The folder for a run of this profile that starts now, by local time."""
    first = path = resolve_dir(profile.output.dir, profile.name, datetime.datetime.now().astimezone())
    number = 2
    while "{time}" in profile.output.dir and path.exists():  # another run that started within the same second
        path, number = first.with_name(f"{first.name}-{number}"), number + 1
    return path


def resolve_dir(pattern: str, name: str, started: datetime.datetime) -> Path:
    """The folder that `output.dir` means for a run of this name that started then (`20260131-235959` in its name).

    Raises:
        ProfileError: the pattern has a placeholder other than `{name}` and `{time}`.
    """
    if faults := _dir_faults(pattern):
        raise ProfileError("output.dir", faults)
    safe_name = re.sub(r"[^\w.+=-]+", "-", name).strip("-.") or "run"
    return Path(pattern.format(name=safe_name, time=f"{started:%Y%m%d-%H%M%S}")).expanduser()


# --- reading ----------------------------------------------------------------------------------------------------------


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
    for axis in _axes(data):
        if axis.get("key") == "workload.dataset.path":
            axis["values"] = [_placed(value, folder) if isinstance(value, str) else value for value in _values(axis)]


def _placed(path: str, folder: Path) -> str:
    return str((folder / Path(path).expanduser()).absolute())


def _axes(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The tables of `[[sweep]]`, whatever stands in them."""
    axes = data.get("sweep")
    return [axis for axis in axes if isinstance(axis, dict)] if isinstance(axes, list) else []


def _values(axis: dict[str, Any]) -> list[Any]:
    values = axis.get("values")
    return values if isinstance(values, list) else []


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


# --- overrides --------------------------------------------------------------------------------------------------------


def _override(data: dict[str, Any], overrides: Overrides) -> list[str]:
    """Change the data in place. Returns one line for each change that is refused."""
    faults: list[str] = []
    default_target = "target" not in data
    if overrides.target is not None:
        data["target"] = _http_target(data.get("target"), overrides.target)
    if overrides.model is not None:
        target = data.get("target")
        kind = target.get("kind") if isinstance(target, dict) else None
        has_model = kind in (_kind(HttpTarget), _kind(EngineTarget))
        faults += assign(data, ["target", "model"] if has_model else ["target", "engine", "model"], overrides.model)
    for key, value in (("rate", overrides.rate), ("duration", overrides.duration)):
        if value is not None:
            faults += _set_load(data, key, value)
    for assignment in overrides.sets:
        faults += _set(data, assignment)
    # A file without a target means the default one, and so does a key set of it.
    if default_target and isinstance(data.get("target"), dict):
        data["target"].setdefault("kind", _kind(SimTarget))
    return faults


def _http_target(former: Any, url: str) -> dict[str, Any]:
    kept = dict(former) if isinstance(former, dict) else {}
    for kind in (SimTarget, EngineTarget):
        if kept.get("kind") == _kind(kind):
            for key in set(kind.__struct_fields__) - set(HttpTarget.__struct_fields__):
                kept.pop(key, None)
    return kept | {"kind": _kind(HttpTarget), "url": url}


def _set_load(data: dict[str, Any], key: str, value: str | float) -> list[str]:
    load = data.get("load")
    kind = load.get("kind") if isinstance(load, dict) else None
    chosen = _LOADS.get(kind) if isinstance(kind, str) else None
    if chosen is not None and key not in chosen.__struct_fields__:
        having = ", ".join(f'"{name}"' for name, load in _LOADS.items() if key in load.__struct_fields__)
        keys = [name for name in chosen.__struct_fields__ if key in name]
        instead = f"; did you mean {' and '.join(f'`load.{name}`' for name in keys)}?" if keys else ""
        return [f'load.{key} = {show(value)}: kind = "{kind}" has no {key} of its own; allowed for: {having}{instead}']
    return assign(data, ["load", key], value)


def _set(data: dict[str, Any], assignment: str) -> list[str]:
    match = _ASSIGNMENT.fullmatch(assignment)
    steps = steps_of(match[1].strip()) if match else None
    if match is None or steps is None:
        return [f"--set {show(assignment, assignment)}: allowed: KEY=VALUE such as load.rate=50"]
    return assign(data, steps, _toml_value(match[2]))


def _toml_value(text: str) -> Any:
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    is_value = list(read) == ["value"] and not isinstance(read["value"], datetime.date | datetime.time)
    return read["value"] if is_value else text


def _kind(target: type[msgspec.Struct]) -> str:
    return str(target.__struct_config__.tag)


# --- secrets and folders ----------------------------------------------------------------------------------------------


def _hide_secrets(data: dict[str, Any]) -> list[str]:
    """A line for each secret in the data, which is then taken out of it, so that no later fault shows it."""
    return _hide_in_target(data.get("target")) + _hide_in_sweep(data)


def _hide_in_sweep(data: dict[str, Any]) -> list[str]:
    """A line for each value of a swept key that is a secret or holds one; the axes that have any are taken out."""
    faults: list[str] = []
    sound = []
    for position, axis in enumerate(_axes(data)):
        key = axis.get("key")
        steps = steps_of(key) if isinstance(key, str) else None
        found: list[str] = []
        if steps is not None and holds_secret(steps):
            found.append(f"sweep[{position}].key = {show(key)}: a secret must not stand in a profile; {_BY_NAME}")
        elif steps is not None and steps[0] == "target":
            for number, value in enumerate(_values(axis)):
                point: dict[str, Any] = {}
                assign(point, steps, deepcopy(value))
                here = f"sweep[{position}].values[{number}]"
                found += [f"{here}: {fault}" for fault in _hide_in_target(point["target"])]
        faults += found
        sound += [] if found else [axis]
    if faults:
        data["sweep"] = sound
    return faults


def _hide_in_target(target: Any) -> list[str]:
    faults = []
    if not isinstance(target, dict):
        return []
    url, headers, variable = target.get("url"), target.get("headers"), target.get("api_key_env")
    if isinstance(url, str) and _CREDENTIALS.match(url):
        faults.append(f"target.url: holds credentials before the @; {_BY_NAME}")
        target["url"] = "http://hidden"
    if isinstance(headers, dict):
        for name in [name for name in headers if looks_secret(name)]:
            faults.append(f"{join('target.headers', name)}: a secret must not stand in a profile; {_BY_NAME}")
            del headers[name]
    if isinstance(variable, str) and not _VARIABLE.fullmatch(variable):
        faults.append(f"target.api_key_env = (hidden): not the name of an environment variable; {_BY_NAME}")
        del target["api_key_env"]
    return faults + _secrets_in(target.get("engine_args"), "target.engine_args")


def _secrets_in(data: Any, path: str) -> list[str]:
    """A line for each secret at any depth, which is taken out. A yes or no is none: `hf_token = true` means the hub's
    own file."""
    faults = []
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in list(items):
        here = join(path, key)
        if isinstance(key, str) and looks_secret(key) and not isinstance(value, bool):
            faults.append(f"{here}: a secret must not stand in a profile; {_BY_ENVIRONMENT}")
            del data[key]
        else:
            faults += _secrets_in(value, here)
    return faults


def _dir_faults(pattern: str) -> list[str]:
    permitted = " and ".join(f"{{{name}}}" for name in _PLACEHOLDERS)
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(pattern) if field is not None]
        pattern.format(**dict.fromkeys(_PLACEHOLDERS, ""))
    except (ValueError, LookupError, AttributeError):
        fields = ["?"]
    if not pattern or any(field not in _PLACEHOLDERS for field in fields):
        return [f"output.dir = {show(pattern)}: allowed: a path, with the placeholders {permitted}"]
    return []
