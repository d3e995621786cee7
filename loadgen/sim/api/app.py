"""The simulated vLLM as one application: all of its routes, its key, its errors. What listens is in `server.py`."""

import hmac
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from loadgen.clock import Clock
from loadgen.sim.api.exposition import Exposition
from loadgen.sim.api.generating import GeneratingRoutes
from loadgen.sim.api.pooling import PoolingRoutes
from loadgen.sim.api.protocol import ApiError, body_reply, json_reply
from loadgen.sim.api.service import Service
from loadgen.sim.api.tokenizing import TokenizingRoutes
from loadgen.sim.config import SimConfig, SimFaults
from loadgen.sim.engine.engine import Engine

VERSION: Final = "0.32.0"
"""The version of vLLM whose answers are imitated."""

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SimApi:
    """The routes over one engine."""

    def __init__(
        self, engine: Engine, config: SimConfig, faults: SimFaults, *, api_key: str | None, clock: Clock | None = None
    ) -> None:
        self.engine = engine
        self._service = Service(engine, config, faults, clock)
        self.concurrency = self._service.concurrency
        """Requests to the model in the server, from their arrival to the end of their answers."""
        self._config = config
        self._exposition = Exposition(engine, self._service.successes)
        self._authorization = None if api_key is None else f"Bearer {api_key}".encode()

    def application(self) -> web.Application:
        """An aiohttp application with these routes; the engine must be open while it serves."""
        app = web.Application(client_max_size=2**31, middlewares=[self._guard])
        GeneratingRoutes(self._service).add_to(app.router)
        PoolingRoutes(self._service).add_to(app.router)
        TokenizingRoutes(self._config).add_to(app.router)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/sim/stats", self._stats)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._authorization is not None and request.path.startswith("/v1"):
            given = request.headers.get("Authorization", "").encode()
            if not hmac.compare_digest(given, self._authorization):
                return json_reply({"error": "Unauthorized"}, 401)
        try:
            return await handler(request)
        except ApiError as error:
            return body_reply(error.body, error.status, error.headers)
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
            return json_reply({"detail": error.reason}, error.status)

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
        return json_reply({"object": "list", "data": [model]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _: web.Request) -> web.Response:
        return json_reply({"version": VERSION})

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._exposition.text(), headers={"Content-Type": _METRICS_TYPE})

    async def _stats(self, request: web.Request) -> web.Response:
        """The server's own truth, for tests: totals, and the concurrency since the last `?reset=1`."""
        engine = self.engine
        stretch = self.concurrency.stretch()
        if request.query.get("reset") == "1":
            self.concurrency.reset()
        return json_reply(
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
                "successes": self._service.successes,
            }
        )
