"""`[[sweep]]`: keys of the profile that take several values, one after the other."""

from typing import Annotated, Any

import msgspec

from loadgen.profile.decoding import Table


class SweepAxis(Table, frozen=True, kw_only=True):
    """One key and its values. Several axes make a grid; every stage of the load is run at each of its points."""

    key: str
    """The full path, as `--set` takes it: `workload.output_tokens.value`."""
    values: Annotated[tuple[Any, ...], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        if any(self.values[i] in self.values[:i] for i in range(1, len(self.values))):
            raise ValueError(f"values of {self.key} repeat one")
