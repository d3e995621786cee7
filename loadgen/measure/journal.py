"""The journal of a run: everything that its report is made of, appended as it comes and read back as a stream.

The folder `journal/` of a run holds `run.msgpack` and one `stage-0000.msgpack` for each stage, so that the summary of
a stage reads that stage only. A file is a sequence of records: a length of 4 bytes, little-endian, and so many bytes of
msgpack. A record goes to the operating system before `append` returns: a killed run leaves what it measured.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
from msgspec.structs import replace

from loadgen.errors import LoadgenError, RunFailure
from loadgen.measure.delta import StageDelta
from loadgen.measure.outcome import Grid
from loadgen.profile.kinds import KINDS, Kind
from loadgen.statistics.sparse import SparseHistograms

FOLDER: Final = "journal"
_RUN: Final = "run.msgpack"
_LENGTH_BYTES: Final = 4


class _Entry(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A record of the journal; an array on disk, its kind first."""


class RunHeader(_Entry, frozen=True):
    """What is known as a run begins. `base_wall_seconds` (since the epoch) and `base_monotonic_ns` are one instant."""

    name: str
    started_at: str
    """ISO 8601 with offset."""
    base_wall_seconds: float
    base_monotonic_ns: int
    profile: dict[str, Any]
    """As resolved, secrets out, in plain builtins."""
    environment: dict[str, Any]
    warnings: list[str] = []

    def of_stage(self, meta: "StageMeta") -> "RunHeader":
        """The header as it holds for one stage, which may have a profile of its own."""
        return self if meta.profile is None else replace(self, profile=meta.profile)

    @property
    def simulated(self) -> bool:
        """Whether the run was one in virtual time."""
        target = self.environment.get("target")
        return isinstance(target, dict) and target.get("simulation") is not None

    @property
    def streamed(self) -> bool:
        """Whether the profile asks for streamed answers, which have a TTFT."""
        target = self.profile.get("target")
        return self._has.streamed and (not isinstance(target, dict) or target.get("stream") is not False)

    @property
    def items(self) -> str | None:
        """What a request of the profile has several of, such as `vectors`; None where it has nothing to count."""
        return self._has.items

    @property
    def sound_seconds(self) -> float | None:
        """How long the sound of each request is that is to be written down; None for other kinds."""
        audio = self._workload.get("audio")
        return float(audio["seconds"]) if self._kind == "transcribe" and isinstance(audio, dict) else None

    @property
    def _workload(self) -> dict[str, Any]:
        workload = self.profile.get("workload")
        return workload if isinstance(workload, dict) else {}

    @property
    def _kind(self) -> str:
        return str(self._workload.get("kind", "chat"))

    @property
    def _has(self) -> Kind:
        return KINDS.get(self._kind, Kind())  # a journal of another version may have another kind

    @property
    def more_than_prompts(self) -> bool:
        """Whether the profile gives requests more than their prompts: a system message, images or sounds."""
        return any(self._workload.get(name) is not None for name in ("system", "images", "audio"))


class RunResumed(_Entry, frozen=True):
    """A run goes on that had been killed or interrupted; what follows is by these clocks, and earlier ends are void."""

    started_at: str
    base_wall_seconds: float
    base_monotonic_ns: int


class StageMeta(_Entry, frozen=True):
    """A stage begins. One that is begun again takes the place of the former.

    stages: how many are planned, itself included; 0 where that is decided as the run goes.
    duration_ns, requests: the bounds of its arrivals, None where not given.
    warmup_auto: the window starts where the warm-up is found to end; otherwise at `grid.window_ns`.
    judged: False for `offline`, which is late by design.
    purpose, settings, repeat: as the report has them.
    profile: its own, where it has settings.
    from_quarter: the window starts at a quarter of what there is of the stage.
    """

    stage: int
    name: str
    kind: str
    grid: Grid
    offered_rate: float | None = None
    concurrency: int | None = None
    duration_ns: int | None = None
    requests: int | None = None
    warmup_auto: bool = False
    drain_ns: int = 0
    judged: bool = True
    stages: int = 0
    purpose: str | None = None
    settings: dict[str, Any] = {}
    repeat: int | None = None
    profile: dict[str, Any] | None = None
    from_quarter: bool = False


class Booking(_Entry, frozen=True):
    """Accounts that the parent decided: what was lost, dropped, or never shipped to a worker.

    intervals: of the intended start, one entry a request.
    bounds: ages of those that had not ended, as `response_at_least` and `ttft_at_least`.
    queued: they waited for a slot; otherwise it is the generator that did not come to send them.
    """

    stage: int
    account: str
    intervals: list[int]
    bounds: list[SparseHistograms] = []
    queued: bool = True


class WorkerStats(_Entry, frozen=True):
    """A worker process at one moment. `cpu_ns`, `wall_ns`, `gc_ns` and `gc_max_ns` are since its start."""

    worker: int
    pid: int
    cpu_ns: int
    wall_ns: int
    rss_bytes: int
    gc_ns: int
    gc_max_ns: int
    in_flight: int
    queued: int


class WorkerOpened(_Entry, frozen=True):
    """A worker process has started a target of its own, such as an engine. One record for each life of a worker.

    start_ns: how long the start took, a length.
    memory_bytes: of the worker and of all processes below it, after the start.
    facts: what the target told of itself, by the names of the report's `environment`, in plain builtins.
    """

    worker: int
    pid: int
    start_ns: int
    memory_bytes: int
    facts: dict[str, Any]

    @property
    def warnings(self) -> list[str]:
        """What a reader should know, as the target told it."""
        return list(self.facts.get("warnings") or ())


class WorkerDeath(_Entry, frozen=True):
    """A worker process died; `reason` says how, with its last words. `pid` is None where none is known."""

    worker: int
    pid: int | None
    reason: str
    jobs_lost: int


class StageEnd(_Entry, frozen=True):
    """A stage has drained.

    stop_ns: the instant at which its arrivals ended, which ends its window.
    intended: how many requests it had.
    ended_by: `duration`, `requests`, `decided`, `stop_when`, `max_time`, `interrupted`, `abort_when` or `failure`.
    parent_cpu: the parent's share of one core in its busiest second during the arrivals, where there was one.
    reason: in words, where there is more to say.
    """

    stage: int
    stop_ns: int
    intended: int
    ended_by: str
    parent_cpu: float | None = None
    reason: str | None = None


class RunEnd(_Entry, frozen=True):
    """The run is over. `parent_cpu` is the parent's share of one core, where it ran anything; `failure` says in a line
    what ended it early."""

    interrupted: bool
    parent_cpu: float | None
    credits_exhausted_ns: int
    warnings: list[str] = []
    failure: str | None = None


COMPLETE: Final = frozenset({"duration", "requests", "decided", "stop_when"})
"""How a stage ends that has all that was asked of it."""

OfRun = RunHeader | RunResumed | StageMeta | StageEnd | WorkerOpened | WorkerDeath | RunEnd
Record = OfRun | StageDelta | Booking | WorkerStats


class NoJournal(LoadgenError):
    """A folder that holds no run."""


class JournalWriter:
    """Appends records to the journal of a run in `directory`, which has none yet, or one to go on with (`resumed`).

    Raises RunFailure from any method where the disk does not take it.
    """

    def __init__(self, directory: Path, *, resumed: bool = False) -> None:
        self._folder = directory / FOLDER
        self._files: dict[str, BinaryIO] = {}
        self._encode = msgspec.msgpack.Encoder().encode
        try:
            self._folder.mkdir(parents=True, exist_ok=resumed)
        except OSError as error:
            raise RunFailure(f"cannot make {self._folder}: {error.strerror}") from None

    def append(self, record: Record, stage: int | None = None) -> None:
        """Append to the file of a stage, or of the run where `stage` is None."""
        name = _RUN if stage is None else _stage_file(stage)
        body = self._encode(record)
        try:
            file = self._files.get(name)
            if file is None:
                file = self._files[name] = (self._folder / name).open("ab", buffering=0)
            _write_whole(file, len(body).to_bytes(_LENGTH_BYTES, "little") + body)
        except OSError as error:
            raise RunFailure(f"cannot write {self._folder / name}: {error.strerror}") from None

    def close_stage(self, stage: int) -> None:
        """Close the file of a stage to which nothing more will come. It is reopened if something does."""
        file = self._files.pop(_stage_file(stage), None)
        if file is not None:
            file.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def keep_stages(directory: Path, count: int) -> None:
    """Make a journal ready to be gone on with: only its first `count` stages are kept, and no end of the run.

    A record that a kill cut off goes too. The new file takes the place of the old one when it is whole.

    Raises:
        NoJournal: the directory holds none.
        OSError: the disk does not take it.
    """
    folder = directory / FOLDER
    partial = folder / "run.partial"
    encode = msgspec.msgpack.Encoder().encode
    with partial.open("wb") as file:
        for record in read_run(directory):
            gone = isinstance(record, StageMeta | StageEnd) and record.stage >= count
            if not gone and not isinstance(record, RunEnd):
                body = encode(record)
                file.write(len(body).to_bytes(_LENGTH_BYTES, "little") + body)
    for path in folder.glob("stage-*.msgpack"):
        if int(path.stem.removeprefix("stage-")) >= count:
            path.unlink()
    partial.replace(folder / _RUN)


def read_run(directory: Path) -> Iterator[Record]:
    """The records of the run's own file: header, stages, workers, deaths, end.

    Raises:
        NoJournal: the directory holds none.
    """
    path = directory / FOLDER / _RUN
    if not path.exists():
        raise NoJournal(f"{directory} holds no run: {path} is missing")
    return _read(path)


def read_stage(directory: Path, stage: int) -> Iterator[Record]:
    """The records of one stage, one at a time; none where it has no file."""
    path = directory / FOLDER / _stage_file(stage)
    return _read(path) if path.exists() else iter(())


def _stage_file(stage: int) -> str:
    return f"stage-{stage:04}.msgpack"


def _write_whole(file: BinaryIO, data: bytes) -> None:
    written = file.write(data)
    while written < len(data):  # a raw file may take less than all, e.g. when the disk is nearly full
        written += file.write(data[written:])


def _read(path: Path) -> Iterator[Record]:
    """Records up to the end, or up to one that a kill cut off or a disk spoilt."""
    decode = msgspec.msgpack.Decoder(Record).decode
    with path.open("rb") as file:
        while len(prefix := file.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
            length = int.from_bytes(prefix, "little")
            body = file.read(length)
            if len(body) < length:
                return
            try:
                record = decode(body)
            except msgspec.DecodeError:  # where one record is spoilt, the place of the next is not known
                return
            yield record
