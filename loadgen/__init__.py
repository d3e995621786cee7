"""loadgen: an async, actor-based load generator for vLLM deployments.

`await loadgen.run(profile)` runs a load test; `loadgen.load_profile("poisson")` reads a profile;
`loadgen.VLLMClient()` asks a server by hand.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadgen.client import VLLMClient
    from loadgen.profile.file import load_profile
    from loadgen.runner.run import run

__version__ = "0.1.0"
__all__ = ["VLLMClient", "load_profile", "run"]

_HOMES = {"VLLMClient": "loadgen.client", "load_profile": "loadgen.profile.file", "run": "loadgen.runner.run"}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: the command line starts without numpy and aiohttp."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
