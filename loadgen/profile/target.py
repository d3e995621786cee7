"""`[target]`: what is loaded."""

import json
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from loadgen.profile.decoding import Table, positive
from loadgen.sim.config import SimConfig, SimFaults
from loadgen.units import NS_PER_SECOND, Duration


class HttpTarget(Table, frozen=True, kw_only=True, tag_field="kind", tag="http"):
    """A server that speaks the OpenAI API as vLLM does."""

    url: str
    """Scheme, host and port, with or without a path such as `/v1`."""
    model: str = "auto"
    """`auto`: the first of `/v1/models`."""
    api_key_env: str | None = None
    """The name of the environment variable that holds the API key."""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    stream: bool = True
    timeout: Duration = Duration(600 * NS_PER_SECOND)
    """For a whole request, from its send."""
    connect_timeout: Duration = Duration(10 * NS_PER_SECOND)
    preflight_timeout: Duration = Duration(60 * NS_PER_SECOND)
    """For the check before the load, its trial request included."""
    verify_tls: bool = True
    retry: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How often a request that is answered with 429 or 503 is sent again, each time after the `Retry-After` of the
    answer and within `timeout`. The load stays open-loop: other requests start as they would have."""

    def __post_init__(self) -> None:
        _server(self.url)
        positive(timeout=self.timeout, connect_timeout=self.connect_timeout, preflight_timeout=self.preflight_timeout)


class SimTarget(Table, frozen=True, kw_only=True, tag_field="kind", tag="sim"):
    """The simulated vLLM: a server of its own on loopback, or a model inside each worker."""

    transport: Literal["http", "in-process"] = "http"
    stream: bool = True
    timeout: Duration = Duration(600 * NS_PER_SECOND)
    engine: SimConfig = SimConfig()
    faults: SimFaults = SimFaults()

    def __post_init__(self) -> None:
        positive(timeout=self.timeout)


class EngineTarget(Table, frozen=True, kw_only=True, tag_field="kind", tag="engine"):
    """A vLLM engine inside each worker process (extra `vllm`)."""

    model: str
    """As vLLM's own `model`: a folder, or a name on the Hugging Face hub."""
    engine_args: dict[str, Any] = msgspec.field(default_factory=dict)
    """Passed to vLLM's `AsyncEngineArgs` as they are; vLLM's own defaults for the rest."""
    request_format: str = "default-template"
    """`default-template`: the model's chat template; `plain`: text without roles; else a Jinja2 template, or the path
    of one."""
    image_placeholder: str = "<image>"
    audio_placeholder: str = "<|audio|>"
    """What stands for an item in a prompt that no template makes."""
    stream: bool = True
    timeout: Duration = Duration(600 * NS_PER_SECOND)
    """For a whole request, from its send."""
    start_timeout: Duration = Duration(1800 * NS_PER_SECOND)
    """For building the engine: it loads, and may compile, its model."""

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise ValueError("model is empty: must be a folder, or a name on the Hugging Face hub")
        theirs = self.engine_args.get("model", self.model)
        if theirs != self.model:
            raise ValueError(f"engine_args.model = {json.dumps(theirs)} is not target.model = {json.dumps(self.model)}")
        positive(timeout=self.timeout, start_timeout=self.start_timeout)


def _server(url: str) -> None:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, an IPv6 address without its end
        sound = False
    if not sound or any(character.isspace() for character in url):
        raise ValueError(
            f"url = {json.dumps(url)}: must be http://HOST:PORT or https://HOST:PORT, with or without a path"
        )
    if parts.query or parts.fragment:
        raise ValueError("url must have no ? or #")


Target = HttpTarget | SimTarget | EngineTarget
