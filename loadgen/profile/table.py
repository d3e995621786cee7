"""What every table of the profile is made of."""

from typing import Annotated

import msgspec

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
