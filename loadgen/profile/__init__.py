"""One load test as data, and everything that reads, checks or writes it as TOML. Nothing here runs or measures.

It may import the settings of the simulated engine (`sim.config`) and the ground. Begin with `profile.py`: the tables
of a profile, whose names the room gives to the others; `file.py` reads one.
"""

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
    CONVERSATIONS,
    LENGTHS_ASKED,
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
    "CONVERSATIONS",
    "LENGTHS_ASKED",
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
