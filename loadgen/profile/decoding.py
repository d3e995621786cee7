"""Plain data to typed tables and back, for profiles.

A profile is decoded by walking its types, so that one reading finds every fault, each told in one line with the key's
full path, the value, what is allowed and a near miss. It knows the types that profiles are made of and no others.
"""

import datetime
import difflib
import json
import math
import re
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin, overload

import msgspec
from msgspec.structs import FieldInfo

from loadgen.units import NS_PER_SECOND, Duration, Rate, format_duration, parse_duration, parse_rate

T = TypeVar("T", bound=msgspec.Struct)

NONE: Final = "none"
"""How a file says that an optional key whose default is a value has none."""

_REFUSED: Final = object()
_INT64: Final = 2**63
_SHOWN_LENGTH: Final = 60
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_SECRET: Final = re.compile(
    r"authorization|(?:api|access)[-_]?key|(?:auth|access|session|hf|hub)[-_]?token(?!i)|(?<![\w-])token$|"
    r"secret|password|credential|cookie",
    re.IGNORECASE,
)
_DURATION: Final = 'a duration such as "500ms", "60s", "2m" or "1h30m"'
_RATE: Final = 'requests per second such as 20.0, "20/s" or "300/min"'
_SCALARS: Final = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


Positive = Annotated[int, msgspec.Meta(ge=1)]


TokenCount = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]


Fraction = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the profile."""


def positive(**durations: int) -> None:
    """Refuse a duration that is not longer than 0."""
    for name, duration in durations.items():
        if duration <= 0:
            raise ValueError(f"{name} must be longer than 0")


class DecodingError(ValueError):
    """Data that does not fit its type; `faults` holds one line for each fault, all of them at once."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


@overload
def decode(shape: type[T], data: Any, path: str = "") -> T: ...
@overload
def decode(shape: Any, data: Any, path: str = "") -> Any: ...
def decode(shape: Any, data: Any, path: str = "") -> Any:
    """Make a value of type `shape` from plain data, as TOML, JSON and msgpack hold it; `path` is where the data stands.

    Raises:
        DecodingError: with every fault of the data. The `ValueError` of a table's `__post_init__` is one of them; it
            is looked for only in tables whose own keys are all sound.
    """
    walk = _Walk()
    value = walk.value(shape, data, path)
    if walk.faults:
        raise DecodingError(walk.faults)
    return value


def encode(table: msgspec.Struct) -> dict[str, Any]:
    """Make plain data, fit for TOML and msgpack, from which `decode` makes an equal table.

    Every key is written, except that a None is left out where None is the default and is `"none"` elsewhere.
    """
    config = table.__struct_config__
    data: dict[str, Any] = {} if config.tag_field is None else {config.tag_field: config.tag}
    for field in msgspec.structs.fields(table):
        value = getattr(table, field.name)
        if value is not None:
            data[field.encode_name] = _plain(value)
        elif _default(field) is not None:
            data[field.encode_name] = NONE
    return data


def looks_secret(key: str) -> bool:
    """Whether a key or header of this name usually holds a secret."""
    return _SECRET.search(key) is not None


def join(path: str, key: str | int) -> str:
    """The path of a key (or list item) of the table at `path`: `load.steps[1].rate`, `slo.ttft."p99.9"`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    written = key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)
    return f"{path}.{written}" if path else written


def near_miss(given: object, candidates: list[str]) -> str | None:
    """The candidate that was probably meant, if any."""
    lower = {candidate.lower(): candidate for candidate in candidates}
    found = difflib.get_close_matches(str(given).lower(), list(lower), n=1)
    return lower[found[0]] if found else None


def show(value: Any, path: str = "") -> str:
    """A value as TOML writes it, short and on one line; hidden where the path says that it may be a secret."""
    if looks_secret(path) or "headers" in path:
        return "(hidden)"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        text = f"[{', '.join(show(item) for item in value[:_SHOWN_LENGTH])}]"
    elif isinstance(value, bool | str) or value is None:
        text = json.dumps(value, ensure_ascii=False)
    elif isinstance(value, datetime.date | datetime.time):
        text = value.isoformat()
    elif isinstance(value, int) and abs(value) >= _INT64:  # may have too many digits to be written
        text = "a number beyond 64 bits"
    else:
        text = repr(value)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 3]}..."


class _Walk:
    """One decoding: descends through type and data together and gathers the faults."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def value(self, shape: Any, data: Any, path: str) -> Any:
        """The value, or `_REFUSED` once its faults are told."""
        members = _members(shape)
        if NoneType in members and (data is None or (data == NONE and str not in members)):
            return None
        if isinstance(data, dict) and (tables := _tables(members)):
            return self._table(tables, data, path)
        if isinstance(data, dict) and (mapping := next((m for m in members if get_origin(m) is dict), None)):
            return self._mapping(mapping, data, path)
        if isinstance(data, list | tuple) and (sequence := next((m for m in members if _is_list(m)), None)):
            return self._list(sequence, data, path)
        for member in members:
            value = _scalar(member, data)
            if value is not _REFUSED:
                return value
        return self._refuse(path, data, allowed(shape), _meant(members, data))

    def _table(self, tables: list[type[msgspec.Struct]], data: dict[str, Any], path: str) -> Any:
        tag_field = tables[0].__struct_config__.tag_field
        if tag_field is None:
            return self._struct(tables[0], data, path)
        kinds = {str(table.__struct_config__.tag): table for table in tables}
        if tag_field not in data:
            if len(tables) == 1:
                return self._struct(tables[0], data, path)
            if slip := near_miss(
                tag_field, [key for key in data if not any(key in _fields(table) for table in tables)]
            ):
                self._unknown(slip, data[slip], [tag_field], path)
            fitting = [kind for kind, table in kinds.items() if data and set(data) <= set(_fields(table))]
            meant = json.dumps(fitting[0]) if len(fitting) == 1 else None
            return self._fault(join(path, tag_field), "missing", _listed(kinds), meant)
        tag = data[tag_field]
        if not isinstance(tag, str) or tag not in kinds:
            miss = near_miss(tag, list(kinds))
            return self._refuse(join(path, tag_field), tag, _listed(kinds), miss and json.dumps(miss))
        return self._struct(kinds[tag], {key: data[key] for key in data if key != tag_field}, path)

    def _struct(self, table: type[msgspec.Struct], data: dict[str, Any], path: str) -> Any:
        fields = _fields(table)
        for key in data:
            if key not in fields:
                self._unknown(key, data[key], list(fields), path)
        values = {}
        for key, field in fields.items():
            if key in data:
                values[field.name] = self.value(field.type, data[key], join(path, key))
            elif field.required:
                values[field.name] = self._fault(join(path, key), "missing", allowed(field.type))
        if _REFUSED in values.values():
            return _REFUSED
        try:
            return table(**values)
        except ValueError as error:
            self.faults.append(f"{path}: {error}" if path else str(error))
            return _REFUSED

    def _mapping(self, mapping: Any, data: dict[str, Any], path: str) -> Any:
        key_shape, value_shape = get_args(mapping)
        keys = [str(key) for key in get_args(key_shape)] if get_origin(key_shape) is Literal else None
        values = {}
        for key, item in data.items():
            if keys is not None and isinstance(item, dict) and any(f"{key}.{end}" in keys for end in item):
                whole = next(f"{key}.{end}" for end in item if f"{key}.{end}" in keys)
                self.faults.append(f'{path}.{whole}: a key with a dot stands in quotes: "{whole}"')
            elif keys is not None and key not in keys:
                self._unknown(key, item, keys, path)
            else:
                values[key] = self.value(value_shape, item, join(path, key))
        return _REFUSED if len(values) < len(data) or _REFUSED in values.values() else values

    def _list(self, sequence: Any, data: list[Any] | tuple[Any, ...], path: str) -> Any:
        bare, meta = _constraint(sequence)
        values = tuple(self.value(get_args(bare)[0], item, join(path, index)) for index, item in enumerate(data))
        if meta is not None and len(data) < (meta.min_length or 0):
            return self._refuse(path, data, allowed(sequence))
        return _REFUSED if _REFUSED in values else values

    def _unknown(self, key: str, value: Any, keys: list[str], path: str) -> None:
        here, miss = join(path, str(key)), near_miss(key, keys)
        listed = ", ".join(keys) or "no keys at all"
        self._fault(f"{here} = {show(value, here)}", "unknown key", listed, miss and f"`{miss}`")

    def _refuse(self, path: str, data: Any, permitted: str, meant: str | None = None) -> object:
        return self._fault(f"{path} = {show(data, path)}" if path else show(data), "", permitted, meant)

    def _fault(self, where: str, what: str, permitted: str, meant: str | None = None) -> object:
        line = f"{where}: {what}; allowed: {permitted}" if what else f"{where}: allowed: {permitted}"
        self.faults.append(f"{line}; did you mean {meant}?" if meant else line)
        return _REFUSED


def allowed(shape: Any) -> str:
    """What a value of this type may be, in words."""
    members = _members(shape)
    words = [_words(member) for member in members if member is not NoneType and not _is_table(member)]
    if tables := _tables(members):
        config = tables[0].__struct_config__
        kinds = [str(table.__struct_config__.tag) for table in tables]
        words.append("a table" if config.tag_field is None else f"a table with {config.tag_field} = {_listed(kinds)}")
    if NoneType in members and str not in members:
        words.append(f'"{NONE}"')
    return " or ".join(words)


def _words(member: Any) -> str:
    if member is Any:
        return "anything"
    if member is Duration:
        return _DURATION
    if member is Rate:
        return _RATE
    if get_origin(member) is Literal:
        return _listed(get_args(member))
    if get_origin(member) is dict:
        return f"a table, each value {allowed(get_args(member)[1])}"
    bare, meta = _constraint(member)
    if _is_list(bare):
        least = f" of at least {meta.min_length}" if meta is not None and meta.min_length else ""
        return f"a list{least}, each item {allowed(get_args(bare)[0])}"
    if bare in _SCALARS:
        return f"{_SCALARS[bare]}{_range(meta)}"
    raise TypeError(f"a profile cannot hold a {member}")


def _range(meta: msgspec.Meta | None) -> str:
    if meta is None:
        return ""
    if meta.ge is not None and meta.le is not None:
        return f" from {meta.ge:.9g} to {meta.le:.9g}"
    bounds = {"of at least": meta.ge, "above": meta.gt, "of at most": meta.le, "below": meta.lt}
    return "".join(f" {word} {bound:.9g}" for word, bound in bounds.items() if bound is not None)


def _listed(values: Any) -> str:
    return ", ".join(json.dumps(value) for value in values)


def _meant(members: tuple[Any, ...], data: Any) -> str | None:
    """What a refused value probably stands for."""
    number = isinstance(data, int | float) and not isinstance(data, bool)
    if number and Duration in members and 0 < data < _INT64 / NS_PER_SECOND:
        return f'"{data}s"' if isinstance(data, int) else f'"{format_duration(round(data * NS_PER_SECOND))}"'
    if isinstance(data, str):
        texts = [text for member in members if get_origin(member) is Literal for text in get_args(member)]
        miss = near_miss(data, [text for text in texts if isinstance(text, str)])
        return miss and json.dumps(miss)
    return None


def _scalar(member: Any, data: Any) -> Any:
    """The value of a type that is neither table nor list, or `_REFUSED`."""
    if member is Any:
        return data
    if get_origin(member) is Literal:
        return next((value for value in get_args(member) if type(value) is type(data) and value == data), _REFUSED)
    if isinstance(data, float) and not math.isfinite(data):
        return _REFUSED
    if isinstance(data, int) and abs(data) >= _INT64:
        return _REFUSED
    try:
        if member is Duration:
            return _duration(data)
        if member is Rate:
            return _REFUSED if isinstance(data, bool) else parse_rate(data)
        if isinstance(data, str):
            data.encode()  # a command line can hold bytes that are no text
        return msgspec.convert(data, member) if _constraint(member)[0] in _SCALARS else _REFUSED
    except (ValueError, TypeError):
        return _REFUSED


def _duration(data: Any) -> Any:
    if isinstance(data, str):
        return parse_duration(data)
    is_zero = isinstance(data, int | float) and not isinstance(data, bool) and data == 0
    return Duration(0) if is_zero else _REFUSED


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return encode(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Duration):
        return format_duration(value)
    return float(value) if isinstance(value, Rate) else value


def _members(shape: Any) -> tuple[Any, ...]:
    """The alternatives of a union; any other type alone."""
    return get_args(shape) if get_origin(shape) in (Union, UnionType) else (shape,)


def _constraint(member: Any) -> tuple[Any, msgspec.Meta | None]:
    """The type without its `Annotated`, and the constraint that stood there."""
    if get_origin(member) is not Annotated:
        return member, None
    bare, *notes = get_args(member)
    return bare, next((note for note in notes if isinstance(note, msgspec.Meta)), None)


def _is_table(member: Any) -> bool:
    return isinstance(member, type) and issubclass(member, msgspec.Struct)


def _is_list(member: Any) -> bool:
    return get_origin(_constraint(member)[0]) is tuple


def _tables(members: tuple[Any, ...]) -> list[type[msgspec.Struct]]:
    return [member for member in members if _is_table(member)]


def _fields(table: type[msgspec.Struct]) -> dict[str, FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(table)}


def _default(field: FieldInfo) -> Any:
    """The default of a field; None where it has none."""
    return None if field.default is msgspec.NODEFAULT else field.default
