"""One load test as data, and all that reads, checks and writes it as TOML. The room gives its tables to the others.

Imports: sim (the settings of the simulated engine). Begin with `profile.py`.
"""

from loadgen.profile.kinds import KINDS
from loadgen.profile.load import (
    AbortWhen,
    Concurrency,
    Constant,
    Gamma,
    Load,
    Offline,
    Poisson,
    Ramp,
    Saturate,
    Step,
    Steps,
    StopWhen,
    Sweep,
    is_search,
)
from loadgen.profile.output import Output
from loadgen.profile.profile import Profile, SweepAxis, Workers
from loadgen.profile.slo import Slo
from loadgen.profile.target import EngineTarget, HttpTarget, SimTarget, Target
from loadgen.profile.workload import (
    Audio,
    Choice,
    Dataset,
    Fixed,
    Histogram,
    Images,
    Lengths,
    Lognormal,
    Normal,
    Uniform,
    Workload,
)

__all__ = [
    "KINDS",
    "AbortWhen",
    "Audio",
    "Choice",
    "Concurrency",
    "Constant",
    "Dataset",
    "EngineTarget",
    "Fixed",
    "Gamma",
    "Histogram",
    "HttpTarget",
    "Images",
    "Lengths",
    "Load",
    "Lognormal",
    "Normal",
    "Offline",
    "Output",
    "Poisson",
    "Profile",
    "Ramp",
    "Saturate",
    "SimTarget",
    "Slo",
    "Step",
    "Steps",
    "StopWhen",
    "Sweep",
    "SweepAxis",
    "Target",
    "Uniform",
    "Workers",
    "Workload",
    "is_search",
]
