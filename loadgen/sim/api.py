"""The simulated vLLM's routes: requests in, answers and faults out. What listens is in `server.py`."""

import asyncio
import hmac
import random
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from loadgen.clock import Clock, MonotonicClock
from loadgen.sim import tokenizer
from loadgen.sim.answers import Answer
from loadgen.sim.config import SimConfig, SimFaults
from loadgen.sim.engine import Engine
from loadgen.sim.exposition import Exposition
from loadgen.sim.protocol import (
    ApiError,
    DetokenizeBody,
    Generation,
    Kind,
    TokenizeBody,
    check_model,
    decode_body,
    parse_generation,
    read_conversation,
    refuse_fields,
)
from loadgen.sim.statistics import ConcurrencyMeter

VERSION: Final = "0.32.0"
"""The version of vLLM whose answers are imitated."""

_TOKENIZE: Final = msgspec.json.Decoder(TokenizeBody)
_DETOKENIZE: Final = msgspec.json.Decoder(DetokenizeBody)
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_EVENT_STREAM: Final = {"Content-Type": "text/event-stream; charset=utf-8"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Fate(NamedTuple):
    """What the faults do to one request."""

    silent: bool
    fails: bool
    aborts: bool
    disconnects: bool


class _Fates:
    """Draws each request's fate, in the order of arrival."""

    def __init__(self, faults: SimFaults) -> None:
        self._faults = faults
        self._random = random.Random(faults.seed)  # noqa: S311 - a simulation
        self._count = 0

    def draw(self) -> _Fate:
        faults = self._faults
        silent = faults.silent_after is not None and self._count >= faults.silent_after
        self._count += 1
        rates = (faults.error_rate, faults.abort_rate, faults.disconnect_rate)
        # Always three draws, so that one fault's rate does not change when another strikes.
        return _Fate(silent, *(self._random.random() < rate for rate in rates))


class SimApi:
    """The routes over one engine."""

    def __init__(
        self, engine: Engine, config: SimConfig, faults: SimFaults, *, api_key: str | None, clock: Clock | None = None
    ) -> None:
        self.engine = engine
        self.concurrency = ConcurrencyMeter(clock or MonotonicClock())
        """Generation requests in the server, from their arrival to the end of their answers."""
        self.successes = {"stop": 0, "length": 0, "abort": 0}
        self._config = config
        self._faults = faults
        self._fates = _Fates(faults)
        self._exposition = Exposition(engine, self.successes)
        self._numbers = count()
        self._authorization = None if api_key is None else f"Bearer {api_key}".encode()

    def application(self) -> web.Application:
        """An aiohttp application with these routes; the engine must be open while it serves."""
        app = web.Application(client_max_size=2**31, middlewares=[self._guard])
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completion)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        app.router.add_get("/sim/stats", self._stats)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._authorization is not None and request.path.startswith("/v1"):
            given = request.headers.get("Authorization", "").encode()
            if not hmac.compare_digest(given, self._authorization):
                return _json({"error": "Unauthorized"}, 401)
        try:
            return await handler(request)
        except ApiError as error:
            return _body(error.body, error.status)
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
            return _json({"detail": error.reason}, error.status)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        with self.concurrency.request():
            return await self._generate("chat", request)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        with self.concurrency.request():
            return await self._generate("completion", request)

    async def _generate(self, kind: Kind, request: web.Request) -> web.StreamResponse:
        fate = self._fates.draw()
        body = await request.read()
        if fate.silent:
            await _until_disconnected()
        if fate.fails:
            raise ApiError(self._faults.error_status, "A fault asked for by the settings.", "InternalServerError")
        if self._faults.reject_fields:
            refuse_fields(body, self._faults.reject_fields)
        generation = parse_generation(kind, body, self._config)
        if fate.aborts:
            half = (generation.output_tokens + 1) // 2
            generation = msgspec.structs.replace(generation, output_tokens=half, finish_reason="abort")
        answer = Answer(generation, self._answer_id(kind, request), self._config.model)
        if generation.stream:
            return await self._stream(request, generation, answer, fate)
        return await self._whole(request, generation, answer, fate)

    def _answer_id(self, kind: Kind, request: web.Request) -> str:
        suffix = request.headers.get("X-Request-Id") or f"{next(self._numbers):032x}"
        return f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{suffix}"

    async def _stream(
        self, request: web.Request, generation: Generation, answer: Answer, fate: _Fate
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=_EVENT_STREAM)
        cut_at = generation.output_tokens // 2 if fate.disconnects else None
        with self.engine.generate(generation.prompt_tokens, generation.output_tokens) as tokens:
            await response.prepare(request)  # vLLM too sends its headers before the first token
            async for delta in tokens:
                if cut_at is not None and answer.words.given + delta.tokens > cut_at:
                    break
                await response.write(answer.event(delta.tokens, generation.finish_reason if delta.finished else None))
        if cut_at is not None:
            await _disconnect(request)
        self.successes[generation.finish_reason] += 1
        return response

    async def _whole(
        self, request: web.Request, generation: Generation, answer: Answer, fate: _Fate
    ) -> web.StreamResponse:
        with self.engine.generate(generation.prompt_tokens, generation.output_tokens, final_only=True) as tokens:
            async for _ in tokens:
                pass
        if fate.disconnects:
            await _disconnect(request)
        self.successes[generation.finish_reason] += 1
        return _body(answer.whole(generation.output_tokens, generation.finish_reason))

    async def _models(self, _: web.Request) -> web.Response:
        model = {
            "id": self._config.model,
            "object": "model",
            "created": 0,
            "owned_by": "vllm",
            "root": self._config.model,
            "parent": None,
            "max_model_len": self._config.max_model_len,
        }
        return _json({"object": "list", "data": [model]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _: web.Request) -> web.Response:
        return _json({"version": VERSION})

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._exposition.text(), headers={"Content-Type": _METRICS_TYPE})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = decode_body(await request.read(), _TOKENIZE)
        check_model(self._config, body.model)
        if body.messages is not None:
            messages, images, audio, _ = read_conversation(body.messages)
            ids = tokenizer.encode_chat(
                messages, images=images, audio=audio, generation_prompt=body.add_generation_prompt
            )
        elif body.prompt is not None:
            ids = tokenizer.encode(body.prompt)
        else:
            raise ApiError(400, "1 validation error: prompt: Field required", "Bad Request", "prompt")
        return _json(
            {
                "count": len(ids),
                "max_model_len": self._config.max_model_len,
                "tokens": ids,
                "token_strs": tokenizer.token_strings(ids) if body.return_token_strs else None,
            }
        )

    async def _detokenize(self, request: web.Request) -> web.Response:
        body = decode_body(await request.read(), _DETOKENIZE)
        check_model(self._config, body.model)
        return _json({"prompt": tokenizer.decode(body.tokens)})

    async def _stats(self, request: web.Request) -> web.Response:
        """The server's own truth, for tests: totals, and the concurrency since the last `?reset=1`."""
        engine = self.engine
        stretch = self.concurrency.stretch()
        if request.query.get("reset") == "1":
            self.concurrency.reset()
        return _json(
            {
                "total_requests": self.concurrency.total,
                "max_concurrent": self.concurrency.max,
                "concurrent": self.concurrency.current,
                "stretch": stretch,
                "finished": engine.statistics.finished,
                "aborted": engine.statistics.aborted,
                "running": engine.running,
                "waiting": engine.waiting,
                "preemptions": engine.preemptions,
                "successes": self.successes,
            }
        )


async def _until_disconnected() -> None:
    """Wait for the cancellation that a handler gets when its client has gone."""
    await asyncio.Event().wait()


async def _disconnect(request: web.Request) -> None:
    """Close the connection after what was written, with no end marker of the answer; never returns."""
    if request.transport is not None:
        request.transport.close()
    await _until_disconnected()


def _json(value: Any, status: int = 200) -> web.Response:
    return _body(msgspec.json.encode(value), status)


def _body(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
