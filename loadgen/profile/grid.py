"""A profile with `[[sweep]]` tables as the profiles that it stands for: one for each point of its grid."""

from copy import deepcopy
from itertools import product
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from loadgen.profile import Profile, is_search
from loadgen.profile.decoding import DecodingError, decode, encode, show
from loadgen.profile.keys import assign, holds_secret, steps_of

_NOT_SWEPT: Final = ("name", "output", "sweep")
_SEARCH: Final = "a search decides its stages itself, and takes no grid; allowed: loads with given rates"


class GridPoint(msgspec.Struct, frozen=True):
    """One point of the grid: the values of the swept keys, and the profile with these values in it."""

    settings: dict[str, Any]
    profile: Profile


def grid_points(profile: Profile) -> tuple[GridPoint, ...]:
    """The points of a profile's grid, the last key changing fastest; without a grid the profile itself.

    Raises:
        DecodingError: with every fault: a key that there is not, a value that it cannot have, a grid of searches.
    """
    if not profile.sweep:
        return (GridPoint({}, profile),)
    faults = _faults(profile)
    if faults:
        raise DecodingError(faults)
    keys = [axis.key for axis in profile.sweep]
    plain = encode(replace(profile, sweep=()))
    found: list[GridPoint] = []
    first: dict[str, str] = {}
    for values in product(*(axis.values for axis in profile.sweep)):
        settings = dict(zip(keys, values, strict=True))
        try:
            point = GridPoint(settings, with_settings(plain, settings))
            if is_search(point.profile.load):
                raise DecodingError([f"load: {_SEARCH}"])
            found.append(point)
        except DecodingError as error:
            words = ", ".join(f"{key} = {show(value, key)}" for key, value in settings.items())
            for fault in error.faults:  # one that does not depend on the other keys is told once
                first.setdefault(fault, f"sweep: with {words}: {fault}")
    for place, one in enumerate(found):
        if any(one.profile == other.profile for other in found[:place]):
            words = ", ".join(f"{key} = {value!r}" for key, value in one.settings.items())
            first.setdefault(words, f"sweep: {words}: stands there twice, in other words")
    if first:
        raise DecodingError(list(first.values()))
    return tuple(found)


def with_settings(plain: dict[str, Any], settings: dict[str, Any]) -> Profile:
    """A profile with other values of some keys. `plain` is the profile as `decoding.encode` makes it.

    Raises:
        DecodingError: a key that there is not, or a value that it cannot have.
    """
    if not settings:
        return decode(Profile, plain)
    data = deepcopy(plain)
    faults = [fault for key, value in settings.items() for fault in assign(data, steps_of(key) or [key], value)]
    if faults:
        raise DecodingError(faults)
    return decode(Profile, data)


def _faults(profile: Profile) -> list[str]:
    faults = [f"sweep: {_SEARCH}"] if is_search(profile.load) else []
    seen: set[str] = set()
    for position, axis in enumerate(profile.sweep):
        here = f"sweep[{position}].key"
        steps = steps_of(axis.key)
        if steps is None or steps[0] in _NOT_SWEPT:
            faults.append(
                f"{here} = {axis.key!r}: allowed: the path of a key of target, workload, load, workers or slo"
            )
        elif holds_secret(steps):
            faults.append(f"{here} = {axis.key!r}: a secret must not stand in a profile")
        elif axis.key in seen:
            faults.append(f"{here} = {axis.key!r}: stands there twice")
        seen.add(axis.key)
    return faults


def axes_in(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The tables of `[[sweep]]`, whatever stands in them."""
    axes = data.get("sweep")
    return [axis for axis in axes if isinstance(axis, dict)] if isinstance(axes, list) else []


def values_in(axis: dict[str, Any]) -> list[Any]:
    values = axis.get("values")
    return values if isinstance(values, list) else []
