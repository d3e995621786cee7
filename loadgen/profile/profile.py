"""The profile: one load test as frozen data. The names are those of the TOML file (docs/formats.md)."""

from typing import Annotated, Any, Literal

import msgspec

from loadgen.profile.decoding import Positive, Table
from loadgen.profile.kinds import kinds_with
from loadgen.profile.load import Load, Ramp, Steps, StopWhen
from loadgen.profile.output import Output
from loadgen.profile.slo import Slo
from loadgen.profile.target import EngineTarget, SimTarget, Target
from loadgen.profile.workload import Workload
from loadgen.units import NS_PER_MS, Duration


class SweepAxis(Table, frozen=True, kw_only=True):
    """One key and its values. Several axes make a grid; every stage of the load is run at each of its points."""

    key: str
    """The full path, as `--set` takes it: `workload.output_tokens.value`."""
    values: Annotated[tuple[Any, ...], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        if any(self.values[i] in self.values[:i] for i in range(1, len(self.values))):
            raise ValueError(f"values of {self.key} repeat one")


class Workers(Table, frozen=True, kw_only=True):
    processes: Positive | Literal["auto"] = "auto"
    max_inflight: Positive = 4096
    """Requests in flight at once, over all workers."""
    launcher: Literal["local"] = "local"
    gpus_per_worker: Positive | None = None
    """GPUs that each worker's engine gets of those visible (`CUDA_VISIBLE_DEVICES`). Absent: the product of
    `tensor_parallel_size`, `pipeline_parallel_size` and `data_parallel_size` of `engine_args` where there are several
    workers; one worker sees them all."""
    max_restarts: Annotated[int, msgspec.Meta(ge=0)] = 2
    """How often one worker is started again after it died."""
    lookahead: Duration = Duration(250 * NS_PER_MS)
    """How long before its due time a request is handed to a worker."""


class Profile(Table, frozen=True, kw_only=True):
    """One load test, complete: what `profile.toml` of a run holds."""

    name: str = "run"
    target: Target = SimTarget()
    workload: Workload = Workload()
    load: Load
    sweep: tuple[SweepAxis, ...] = ()
    workers: Workers = Workers()
    slo: Slo | None = None
    output: Output = Output()

    def __post_init__(self) -> None:
        target, kind = self.target, self.workload.kind
        if isinstance(target, SimTarget) and target.transport == "in-process":
            _one_of("in_simulator", kind, "the simulator")
        elif isinstance(target, EngineTarget):
            _one_of("in_engine", kind, "an engine")
            unfit = "generate" if kind == "embed" else "pooling"
            if target.engine_args.get("runner") == unfit:
                raise ValueError(f'workload.kind = "{kind}": an engine of engine_args.runner = "{unfit}" has none')
        if self.slo is None and any(rule is not None and rule.slo_missed for rule in _stops(self.load)):
            raise ValueError("load.stop_when.slo_missed = true: needs [slo]")


def _stops(load: Load) -> list[StopWhen | None]:
    """What ends the ramps of a load early."""
    loads = load.steps if isinstance(load, Steps) else (load,)
    return [one.stop_when for one in loads if isinstance(one, Ramp)]


def _one_of(where: str, kind: str, what: str) -> None:
    kinds = kinds_with(where)
    if kind not in kinds:
        has = f"{', '.join(kinds[:-1])} and {kinds[-1]}"
        raise ValueError(f'workload.kind = "{kind}": {what} in a worker has {has}; a server has the rest')
