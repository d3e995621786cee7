"""What a sound profile needs of this machine and may not find: variables, libraries, files, slots."""

import os
from importlib.util import find_spec

from loadgen.errors import LoadgenError
from loadgen.profile import EngineTarget, HttpTarget, Profile
from loadgen.profile.grid import grid_points
from loadgen.search.program import planned
from loadgen.workload.dataset import read_rows


def check_environment(profile: Profile) -> list[str]:
    """What the profile, or a point of its grid, needs of this process' environment and does not find, one line each."""
    return list(dict.fromkeys(fault for point in grid_points(profile) for fault in _lacking(point.profile)))


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


def faults_here(profile: Profile) -> list[str]:
    """Why a sound profile cannot be run in this environment, one line each."""
    return check_environment(profile) + slot_faults(profile)


def slot_faults(profile: Profile) -> list[str]:
    """Of each closed loop that asks for more slots than the workers have together a line that says so."""
    faults = []
    for point in grid_points(profile):
        has = point.profile.workers.max_inflight
        needed = max((plan.concurrency or 0 for plan in planned(point.profile) or ()), default=0)
        if needed > has:
            faults.append(f"workers.max_inflight = {has}: must be at least load.concurrency = {needed}")
    return list(dict.fromkeys(faults))
