"""What every target is to the worker that loads it, and what is known of it before the load starts."""

from typing import Any, Protocol

import msgspec

from loadgen.measure.outcome import Exchange
from loadgen.profile import Workload
from loadgen.workload.request import Request, Tokenization


class Simulation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What stood in for the target of a run in virtual time: so many simulated engines, and how a router behind which
    they stood chose among them; None where there was nothing to choose."""

    replicas: int
    router: str | None = None


class TargetInfo(msgspec.Struct, frozen=True):
    """What the check before the load found out; every worker gets it, and the report's `environment` shows it."""

    kind: str
    url: str | None = None
    model: str | None = None
    """The model to name in bodies; None where the server would not say and none was given."""
    available_models: tuple[str, ...] = ()
    version: str | None = None
    max_model_len: int | None = None
    omitted_fields: tuple[str, ...] = ()
    """Body fields that the server refused in the trial and that are left out of every request."""
    constraint: str | None = None
    """The body field by which the server was seen to constrain an answer to labels; None where it was not tried."""
    simulation: Simulation | None = None
    """None for a target in real time."""
    warnings: tuple[str, ...] = ()


class Opening(msgspec.Struct, frozen=True):
    """What only the worker that holds the target can find out, as it opens it; the parent is told."""

    info: TargetInfo
    tokenization: Tokenization
    start_ns: int
    """How long the start took, a length."""
    memory_bytes: int
    """Resident memory of the worker and of all processes below it, after the start."""


class Patience(msgspec.Struct, frozen=True):
    """How long a worker may take, in seconds, to open its target, and to close it when told to finish."""

    open_seconds: float = 600.0
    close_seconds: float = 15.0


class Target(Protocol):
    """One worker's session with what it loads: a server over HTTP, an engine, or a simulated engine."""

    opening: Opening | None
    """None where the check before the load found out all there is."""

    def prepare(self, request: Request) -> Any:
        """Render a request ahead of its due time. Pure; does no I/O."""

    async def send(self, prepared: Any, exchange: Exchange) -> None:
        """Send a prepared request and follow its answer to the end, writing what is seen into `exchange`.

        Sets `exchange.end_ns` at the end, and `exchange.failure` where the request failed; it raises only on
        cancellation, and then leaves in `exchange` what was seen so far.
        """

    def with_workload(self, workload: Workload) -> "Target":
        """The same session, asking as another workload of the profile does; it ends with this one."""

    async def watch(self) -> str:
        """Wait until the target is gone for good, and return why, in a line. Requests in flight then end by themselves,
        as failed; the worker ends, and is started again with a target of its own."""
