"""`[output]`: the files of a run, and the folder that they go into."""

import datetime
import re
import string
from pathlib import Path
from typing import Final, Literal

from loadgen.errors import ProfileError
from loadgen.profile.decoding import Table, show


class Output(Table, frozen=True, kw_only=True):
    dir: str = "runs/{name}-{time}"
    formats: tuple[Literal["json", "csv", "html", "hlog"], ...] = ("json", "csv", "html", "hlog")
    records: bool = False
    """Write `requests.jsonl`, one line for each request that a worker ended."""
    texts: bool = False
    """Write it with what each answer says."""

    @property
    def lines(self) -> bool:
        """Whether there is a line for each request: texts have no other place."""
        return self.records or self.texts


_PLACEHOLDERS: Final = ("name", "time")


def resolve_dir(pattern: str, name: str, started: datetime.datetime) -> Path:
    """The folder that `output.dir` means for a run of this name that started then (`20260131-235959` in its name).

    Raises:
        ProfileError: the pattern has a placeholder other than `{name}` and `{time}`.
    """
    if faults := dir_faults(pattern):
        raise ProfileError("output.dir", faults)
    safe_name = re.sub(r"[^\w.+=-]+", "-", name).strip("-.") or "run"
    return Path(pattern.format(name=safe_name, time=f"{started:%Y%m%d-%H%M%S}")).expanduser()


def dir_faults(pattern: str) -> list[str]:
    permitted = " and ".join(f"{{{name}}}" for name in _PLACEHOLDERS)
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(pattern) if field is not None]
        pattern.format(**dict.fromkeys(_PLACEHOLDERS, ""))
    except (ValueError, LookupError, AttributeError):
        fields = ["?"]
    if not pattern or any(field not in _PLACEHOLDERS for field in fields):
        return [f"output.dir = {show(pattern)}: allowed: a path, with the placeholders {permitted}"]
    return []
