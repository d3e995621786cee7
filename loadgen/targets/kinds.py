"""The kinds of target by their table in the profile, and what is done with each."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from loadgen import profile as profiles
from loadgen.clock import Clock
from loadgen.profile import EngineTarget, HttpTarget, Profile, SimTarget, Workload
from loadgen.targets.base import Patience, Target, TargetInfo
from loadgen.targets.engine.opening import LOG_ENV, open_engine
from loadgen.targets.engine.vllm_api import require_vllm
from loadgen.targets.http.preflight import check_http, tokenizer_of_server
from loadgen.targets.http.session import open_http
from loadgen.targets.sim import describe_sim, embedded_server, open_sim, tokenizer_of_simulator
from loadgen.workload.prompt import prompt_format
from loadgen.workload.request import Request, Tokenization
from loadgen.workload.sources import make_workload
from loadgen.workload.tokens import estimate, from_tokenizer

_TRIAL_INDEX: Final = 1 << 60
"""The trial request's; no request of the load has it."""
_TRIAL_PROMPT_TOKENS: Final = 16
_TRIAL_OUTPUT_TOKENS: Final = 2
_GRACE_SECONDS: Final = 60
_CLOSE_ENGINE_SECONDS: Final = 90


Opener = Callable[[Profile, TargetInfo, Clock], AbstractAsyncContextManager[Target]]
"""Opens one worker's session with the target of a checked profile, as `open_target` does."""


class Checked(msgspec.Struct, frozen=True):
    """A target that can be loaded. `profile` is the one that workers get: an embedded server has its URL there."""

    profile: Profile
    info: TargetInfo
    tokenization: Tokenization | None
    """None where the workers' opened targets tell."""


@asynccontextmanager
async def checked_target(profile: Profile, clock: Clock) -> AsyncIterator[Checked]:
    """Check the target of a profile, starting what is embedded in the run; what was started ends with the context.

    Raises:
        TargetError: it cannot be loaded.
        LoadgenError: the profile's tokenizer is unusable.
    """
    check = KINDS[type(profile.target)].check
    async with check(profile, clock) as checked:
        yield checked


def open_target(profile: Profile, info: TargetInfo, clock: Clock) -> AbstractAsyncContextManager[Target]:
    """One worker's session with the target of a checked profile."""
    return KINDS[type(profile.target)].open(profile, info, clock)


def patience_with(target: profiles.Target) -> Patience:
    """How long a worker may take to open and to close this target."""
    return KINDS[type(target)].patience(target)


def _tokenizer_of(workload: Workload) -> Tokenization | None:
    """The counts of the profile's own tokenizer; None where it names none. Raises LoadgenError where it is unusable."""
    return None if workload.tokenizer is None else from_tokenizer(workload.tokenizer)


@asynccontextmanager
async def _check_http(profile: Profile, clock: Clock) -> AsyncIterator[Checked]:
    target = profile.target
    assert isinstance(target, HttpTarget)
    given = _tokenizer_of(profile.workload)
    trial_workload, request = _trial(profile)
    info = await check_http(target, trial_workload, request, clock)
    if given is None:
        async with open_http(target, profile.workload, info, clock) as session:
            given = await tokenizer_of_server(session, target)
    yield Checked(profile, info, given)


@asynccontextmanager
async def _check_sim(profile: Profile, clock: Clock) -> AsyncIterator[Checked]:
    target = profile.target
    assert isinstance(target, SimTarget)
    if target.transport == "in-process":
        yield Checked(profile, describe_sim(target), _tokenizer_of(profile.workload) or tokenizer_of_simulator())
        return
    async with embedded_server(target) as server, _check_http(replace(profile, target=server), clock) as checked:
        yield replace(checked, info=replace(checked.info, kind="sim"))


@asynccontextmanager
async def _check_engine(profile: Profile, clock: Clock) -> AsyncIterator[Checked]:
    """What can be told without loading a model; the rest is told by the workers that do."""
    target = profile.target
    assert isinstance(target, EngineTarget)
    require_vllm()
    prompt_format(target.request_format)
    yield Checked(profile, TargetInfo(kind="engine", model=target.model), _tokenizer_of(profile.workload))


def _trial(profile: Profile) -> tuple[Workload, Request]:
    """The workload and the request of the trial: like those of the load, but short."""
    workload = profile.workload
    output = None if workload.output_tokens is None else _TRIAL_OUTPUT_TOKENS
    body = dict(workload.body)
    if (
        output is None
        and profiles.KINDS[workload.kind].lengths_asked
        and not {"max_tokens", "max_completion_tokens"} & body.keys()
    ):
        body["max_tokens"] = _TRIAL_OUTPUT_TOKENS
    prompt = None if workload.prompt_tokens is None else _TRIAL_PROMPT_TOKENS
    short = replace(workload, prompt_tokens=prompt, output_tokens=output, body=body)
    request = make_workload(short, estimate(), short.nonce or 0).request(_TRIAL_INDEX)
    if request.output_tokens is not None:  # a row of a file may ask for more
        request = replace(request, output_tokens=_TRIAL_OUTPUT_TOKENS)
    return short, request


def _open_http(profile: Profile, info: TargetInfo, clock: Clock) -> AbstractAsyncContextManager[Target]:
    assert isinstance(profile.target, HttpTarget)
    return open_http(profile.target, profile.workload, info, clock)


def _open_sim(profile: Profile, info: TargetInfo, clock: Clock) -> AbstractAsyncContextManager[Target]:
    assert isinstance(profile.target, SimTarget)
    return open_sim(profile.target, clock)


def _open_engine(profile: Profile, info: TargetInfo, clock: Clock) -> AbstractAsyncContextManager[Target]:
    assert isinstance(profile.target, EngineTarget)
    log = os.environ.get(LOG_ENV)
    return open_engine(profile.target, profile.workload, _trial(profile), Path(log) if log else None, clock)


def _patience_with_engine(target: profiles.Target) -> Patience:
    assert isinstance(target, EngineTarget)
    # Beyond its own limits, of the start and of the warm-up, which say why: here only a worker that hangs is meant.
    return Patience(2 * target.start_timeout.seconds + _GRACE_SECONDS, _CLOSE_ENGINE_SECONDS)


class Kind(msgspec.Struct, frozen=True):
    """A kind of target: its check before the load, a worker's session with it, and how long a worker may take to open
    and to close it."""

    check: Callable[[Profile, Clock], AbstractAsyncContextManager[Checked]]
    open: Opener
    patience: Callable[[profiles.Target], Patience] = lambda target: Patience()


KINDS: Final[dict[type, Kind]] = {
    HttpTarget: Kind(_check_http, _open_http),
    SimTarget: Kind(_check_sim, _open_sim),
    EngineTarget: Kind(_check_engine, _open_engine, _patience_with_engine),
}
"""By their table of the profile. A new kind is such a table (`profile/target.py`), one new file, and a line here."""
