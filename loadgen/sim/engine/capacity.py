"""The true saturation rate of a simulated engine, from its settings: what a search by load must find."""

from typing import Literal

import msgspec

from loadgen.sim.config import SimConfig
from loadgen.sim.engine.scheduler import check_lengths

Bound = Literal["batched tokens", "slots", "kv blocks"]


class Capacity(msgspec.Struct, frozen=True):
    """What a saturated engine does with requests of one length."""

    requests_per_second: float
    bound: Bound
    """What limits the requests that fit into a step: `max_num_batched_tokens`, `max_num_seqs` or `num_kv_blocks`."""
    requests_per_step: float
    """Requests completed per step, on average."""
    step_seconds: float
    """Mean duration of a step."""


def capacity(config: SimConfig, prompt_tokens: int, output_tokens: int) -> Capacity:
    """The highest rate at which requests of P prompt and O output tokens can arrive without the queue growing.

    That rate is the throughput of an engine whose queue is never empty. Every term of a step's duration is linear in
    what the step does, so over a long time T with n steps and N completed requests

        T = n base + N (P prefill + (O - 1) decode + H kv),    H = O P + O (O - 1) / 2,

    where H sums the tokens that a request holds over its O steps (P in the step that emits the first token, one more
    in each later one; longer prefills add little). With x = N / n requests a step

        rate = N / T = 1 / (base / x + P prefill + (O - 1) decode + H kv).

    It grows with x, so a saturated engine runs at the largest x that its settings allow:

        batched tokens   x (P + O - 1) <= max_num_batched_tokens       each request costs P + O - 1 of the budget
        slots            x (c + O - 1) <= max_num_seqs                 each holds a slot for c + O - 1 steps
        kv blocks        x (c + O - 1) <= floor(num_kv_blocks / b)     b = mean blocks held = mean ceil((P + j) / size)

    The prefill takes c steps: c is the least whole number that holds P in c times the budget that the decoding
    sequences leave, whose mean number is slots (O - 1) / (c + O - 1). Jitter has mean 1 and changes nothing.

    A saturated scheduler completes within 1 % of this rate where KV blocks do not run out. Where they do (`bound` is
    `kv blocks`) the rate is what they would carry if no sequence were ever preempted; admission is greedy, so a
    saturated engine preempts, computes prompts again and completes up to 10 % less.

    Raises:
        ValueError: a length is below 1, or both together are above `max_model_len`.
    """
    check_lengths(config, prompt_tokens, output_tokens)
    decodes = output_tokens - 1
    blocks = sum(-(-(prompt_tokens + held) // config.block_size) for held in range(output_tokens)) / output_tokens
    in_kv = int(config.num_kv_blocks / blocks)
    slots = min(config.max_num_seqs, in_kv)
    by_tokens = config.max_num_batched_tokens / (prompt_tokens + decodes)
    by_slots = slots / (_prefill_steps(config, prompt_tokens, decodes, slots) + decodes)
    per_step = min(by_tokens, by_slots)
    bound: Bound = (
        "batched tokens" if by_tokens <= by_slots else "kv blocks" if in_kv < config.max_num_seqs else "slots"
    )

    held_tokens = output_tokens * prompt_tokens + output_tokens * decodes / 2
    step_seconds = config.step_base_seconds + per_step * (
        prompt_tokens * config.seconds_per_prefill_token
        + decodes * config.seconds_per_decode_seq
        + held_tokens * config.seconds_per_kv_token
    )
    return Capacity(per_step / step_seconds, bound, per_step, step_seconds)


def _prefill_steps(config: SimConfig, prompt_tokens: int, decodes: int, slots: int) -> int:
    steps = 1
    # Slower prefills leave fewer sequences decoding and so more of the budget: the first number that fits is the one.
    while steps * (config.max_num_batched_tokens - slots * decodes / (steps + decodes)) < prompt_tokens:
        steps += 1
    return steps
