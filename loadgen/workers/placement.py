"""Where each worker lives on this machine: the GPUs that its engine sees. Arithmetic on the profile; nothing starts."""

import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import msgspec

from loadgen.errors import ProfileError
from loadgen.profile import EngineTarget, Profile

VISIBLE_ENV: Final = "CUDA_VISIBLE_DEVICES"
_SIZES: Final = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "prefill_context_parallel_size",
)
"""The engine arguments whose product is how many GPUs an engine takes; each is 1 by default."""


class Placement(msgspec.Struct, frozen=True):
    """What one worker process is given of this machine."""

    environment: dict[str, str] = {}
    """Variables that it has beside those of the parent, or instead of them."""
    engine: bool = False
    """Whether it holds an engine: processes of its own below it, and sockets in a folder."""


def placements(profile: Profile, processes: int, environ: Mapping[str, str], gpus: int | None) -> list[Placement]:
    """The placement of each of `processes` workers, by number.

    Several engines, or one with `workers.gpus_per_worker`, get slices of the visible GPUs, in order: those that
    `CUDA_VISIBLE_DEVICES` of `environ` names, as it names them, or else the `gpus` of this machine by number. With
    `gpus` None nobody can tell how many there are, and the slices are not checked. Several engines on a machine
    without a GPU get no slices.

    Raises ProfileError where fewer GPUs are visible than the workers need, and for GPUs of a target that has none.
    """
    wanted = profile.workers.gpus_per_worker
    if not isinstance(profile.target, EngineTarget):
        if wanted is not None:
            raise ProfileError(profile.name, ['workers.gpus_per_worker: only target.kind = "engine" has GPUs here'])
        return [Placement() for _ in range(processes)]
    visible = visible_gpus(environ, gpus)
    if wanted is None and (visible == [] or (processes == 1 and _fits(profile.target, visible))):
        return [Placement(engine=True) for _ in range(processes)]
    each = wanted if wanted is not None else gpus_of_engine(profile.target.engine_args)
    needed = processes * each
    if visible is None:
        visible = [str(number) for number in range(needed)]
    if len(visible) < needed:
        whence = "" if wanted is not None else " (as engine_args ask)"
        raise ProfileError(
            profile.name,
            [
                f"workers.processes = {processes} with workers.gpus_per_worker = {each}{whence} needs "
                f"{needed} GPU{'s' if needed > 1 else ''}, and {_are_visible(len(visible), environ)}"
            ],
        )
    slices = (visible[worker * each : (worker + 1) * each] for worker in range(processes))
    return [Placement({VISIBLE_ENV: ",".join(names)}, engine=True) for names in slices]


def _fits(target: EngineTarget, visible: list[str] | None) -> bool:
    return visible is None or gpus_of_engine(target.engine_args) <= len(visible)


def visible_gpus(environ: Mapping[str, str], gpus: int | None) -> list[str] | None:
    """The GPUs that a process of this environment sees, as CUDA names them; None where that cannot be told.

    CUDA reads the list up to its first invalid name; `-1`, or nothing at all, is how GPUs are hidden.
    """
    named = environ.get(VISIBLE_ENV)
    if named is not None:
        return list(takewhile(lambda name: name not in ("", "-1"), (name.strip() for name in named.split(","))))
    return None if gpus is None else [str(number) for number in range(gpus)]


def gpus_of_engine(engine_args: Mapping[str, Any]) -> int:
    """How many GPUs an engine with these arguments takes. What is no count is passed over: vLLM refuses it."""
    product = 1
    for name in _SIZES:
        size = engine_args.get(name)
        if isinstance(size, int) and size > 0:
            product *= size
    return product


def count_gpus(root: Path = Path("/")) -> int | None:
    """How many NVIDIA GPUs this machine, or this container, has: by the kernel's files below `root`.

    The driver may list all GPUs of a machine in a container that has devices for some, or the other way round; the
    fewer are those that work. None where there is no such place to look, or GPUs are reached in another way (WSL, AMD).
    """
    drivers, devices = root / "proc/driver/nvidia/gpus", root / "dev"
    others = ("dxg", "kfd")  # WSL, AMD
    if not (root / "proc").is_dir() or not devices.is_dir() or any((devices / other).exists() for other in others):
        return None
    listed = len(list(drivers.iterdir())) if drivers.is_dir() else 0
    present = sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in devices.iterdir())
    return min(listed, present) if listed and present else max(listed, present)


def _are_visible(count: int, environ: Mapping[str, str]) -> str:
    many = f"{count} {'is' if count == 1 else 'are'} visible"
    return f"{many} ({VISIBLE_ENV}={environ[VISIBLE_ENV]})" if VISIBLE_ENV in environ else many
