"""The floor under an engine in process: a bare asyncio loop over `AsyncLLMEngine.generate` that only counts.

N tasks, each with one request after the other, as a closed loop does. It knows nothing of loadgen; `bench_engine.py`
runs it. Prompts are random token ids made beforehand. Writes a JSON list with, for each request in the order of their
ends, its end in seconds, its output tokens, and the CPU time of this process at that instant.

usage: python tools/bench_engine_floor.py MODEL --engine-args JSON --in-flight N --requests N --prompt-tokens N
       --output-tokens N --out FILE
"""

import argparse
import asyncio
import gc
import json
import random
import time
from pathlib import Path

import uvloop
from vllm import AsyncEngineArgs, AsyncLLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind


async def run(options: argparse.Namespace) -> list[tuple[float, int, float]]:
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=options.model, **options.engine_args))
    vocabulary, count = engine.model_config.get_vocab_size(), options.prompt_tokens
    # Special tokens sit at either end of a vocabulary.
    ids = range(min(1_000, vocabulary // 4), min(vocabulary, 32_000))
    prompts = iter([random.choices(ids, k=count) for _ in range(options.requests)])
    lengths = {"max_tokens": options.output_tokens, "min_tokens": options.output_tokens, "ignore_eos": True}
    defaults = engine.model_config.get_diff_sampling_param()
    sampling = SamplingParams(**{**defaults, **lengths}, output_kind=RequestOutputKind.DELTA)
    ends = []
    gc.collect()
    gc.freeze()  # as vLLM's server and loadgen do: the collector would walk over all that was imported

    async def client(name: int) -> None:
        for number, prompt in enumerate(prompts):  # one iterator for all: each prompt is asked once
            tokens = 0
            async for output in engine.generate({"prompt_token_ids": prompt}, sampling, f"{name}-{number}"):
                tokens += len(output.outputs[0].token_ids)
            ends.append((time.monotonic(), tokens, time.process_time()))

    await asyncio.gather(*(client(name) for name in range(options.in_flight)))
    engine.shutdown()
    return ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--engine-args", type=json.loads, required=True)
    for name in ("--in-flight", "--requests", "--prompt-tokens", "--output-tokens"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.write_text(json.dumps(uvloop.run(run(options))), encoding="utf-8")


if __name__ == "__main__":
    main()
