"""`[workload.dataset]`: requests from a file of the user's."""

from typing import Annotated, Final, Literal

import msgspec

from loadgen.profile.table import Table

FROM_DATASET: Final = ("chat", "completion", "choice", "responses", "messages", "tokenize", "embed")
"""The kinds whose requests a dataset can hold."""


class Dataset(Table, frozen=True, kw_only=True):
    """A file of JSON lines, one request a line (`workload.dataset.Row`)."""

    path: Annotated[str, msgspec.Meta(min_length=1)]
    """`load_profile` makes it absolute: each worker reads the file itself."""
    order: Literal["sequential", "shuffle"] = "sequential"
    """`shuffle`: in an order that is drawn once, by `workload.seed`. After the last row the first comes again."""
