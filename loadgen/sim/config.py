"""The simulator's settings as data: how fast the simulated engine is, and what goes wrong with it on purpose."""

import math

import msgspec


class SimConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A simulated vLLM engine; the defaults resemble a model of about 1 B parameters on one data-centre GPU.

    One engine step lasts

        step_base_seconds
        + seconds_per_prefill_token * (prompt tokens computed in the step)
        + seconds_per_decode_seq    * (sequences that decode one token in the step)
        + seconds_per_kv_token      * (tokens whose keys and values are held during the step)

    times the jitter. Raises ValueError for a value that no engine could have.
    """

    model: str = "sim"
    """The name that the server answers to."""
    max_model_len: int = 8192
    """Longest prompt and output together, in tokens."""
    max_num_seqs: int = 256
    """Sequences in the batch at once."""
    max_num_batched_tokens: int = 2048
    """Tokens computed in one step: one for each decoding sequence, the rest for prefill, which is cut into chunks."""
    block_size: int = 16
    """Tokens in one block of KV cache."""
    num_kv_blocks: int = 32_768
    """Blocks of KV cache (the default holds 524,288 tokens)."""
    step_base_seconds: float = 0.006
    """Duration of a step apart from its load, in seconds."""
    seconds_per_prefill_token: float = 8e-6
    """Added to a step by each prompt token that it computes, in seconds."""
    seconds_per_decode_seq: float = 30e-6
    """Added to a step by each sequence that decodes, in seconds."""
    seconds_per_kv_token: float = 1e-8
    """Added to a step by each token held in the KV cache (reading it), in seconds."""
    jitter_cv: float = 0.0
    """Coefficient of variation of a lognormal factor of mean 1 on each step's duration; 0 for none."""
    seed: int = 0
    """Seeds the jitter, and the answers' words and lengths."""

    def __post_init__(self) -> None:
        for name in (
            "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "num_kv_blocks",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 1")
        for name in (
            "step_base_seconds", "seconds_per_prefill_token", "seconds_per_decode_seq", "seconds_per_kv_token",
            "jitter_cv",
        ):  # fmt: skip
            _require_at_least_0(name, getattr(self, name))
        if self.step_base_seconds + min(self.seconds_per_prefill_token, self.seconds_per_decode_seq) < 1e-6:
            raise ValueError(
                f"step_base_seconds = {self.step_base_seconds}: the shortest step must last at least 1e-6 seconds"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens = {self.max_num_batched_tokens}: "
                f"must be at least max_num_seqs ({self.max_num_seqs})"
            )
        if self.num_kv_blocks * self.block_size < self.max_model_len:
            raise ValueError(
                f"num_kv_blocks = {self.num_kv_blocks}: must hold one sequence of max_model_len "
                f"({self.max_model_len}) tokens: at least {-(-self.max_model_len // self.block_size)}"
            )


class SimFaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes wrong on purpose; all of it off by default. Raises ValueError for impossible values.

    Faults by rate are drawn per request to the model (of any kind; tokenizing is none) in the order of arrival from a
    generator of their own: the same seed gives the same pattern. The engine's faults (`stall_*`,
    `response_delay_seconds`) hold in a worker too, the others are the server's.
    """

    seed: int = 0
    """Seeds the faults by rate."""
    error_rate: float = 0.0
    """Share of requests answered with `error_status` at once."""
    error_status: int = 503
    """HTTP status of those answers, 400 to 599."""
    retry_after: int | None = None
    """What those answers say in `Retry-After`, in whole seconds, where their status is 429 or 503; None for nothing."""
    abort_rate: float = 0.0
    """Share of requests cut to half of their output and ended with finish reason `abort`."""
    disconnect_rate: float = 0.0
    """Share of requests whose connection is closed after half of the output, without an end marker."""
    stall_at_seconds: float | None = None
    """When the engine stalls, in seconds after the first request came; None for never."""
    stall_seconds: float = 0.0
    """How long it stalls, once: no step begins in that time (fixed delays: no token comes)."""
    silent_after: int | None = None
    """How many requests are answered before all later ones are accepted and never answered; None for no limit."""
    reject_fields: tuple[str, ...] = ()
    """Body fields refused with 400, as strict servers refuse what they do not know."""
    response_delay_seconds: float | None = None
    """An answer takes exactly this long however many there are (tokens evenly spread): no batching is simulated."""

    def __post_init__(self) -> None:
        for name in ("error_rate", "abort_rate", "disconnect_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be between 0 and 1")
        if not 400 <= self.error_status <= 599:
            raise ValueError(f"error_status = {self.error_status}: must be between 400 and 599")
        _require_at_least_0("stall_seconds", self.stall_seconds)
        for name in ("retry_after", "stall_at_seconds", "silent_after", "response_delay_seconds"):
            if getattr(self, name) is not None:
                _require_at_least_0(name, getattr(self, name))


def _require_at_least_0(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} = {value}: must be at least 0")
