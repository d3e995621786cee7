"""The routes of models that pool: `/v1/embeddings`, `/pooling`, `/score` and `/rerank`.

A real server has either these or the ones that generate; the simulated server has both. A score is the cosine of two
embeddings, as an embedding model's is.
"""

import base64
import struct
import time
from typing import Annotated, Any, Final, Literal

import msgspec
from aiohttp import web

from loadgen.sim.api.generation import check_prompt
from loadgen.sim.api.protocol import ApiError, TokenId, check_model, decode_body, json_reply
from loadgen.sim.api.service import Service
from loadgen.sim.model.conversation import Message, Prompt, prompt_of_chat, prompt_of_ids, prompt_of_text
from loadgen.sim.model.language import EMBEDDING_SIZE, embed, similarity

_Texts = str | list[str]


class _EmbeddingBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    input: str | list[str | TokenId | list[TokenId]] | None = None
    messages: list[Message] | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    task: str | None = None


class _ScoreBody(msgspec.Struct, kw_only=True):
    """One of the pairs of fields is given."""

    model: str | None = None
    text_1: _Texts | None = None
    text_2: _Texts | None = None
    data_1: _Texts | None = None
    data_2: _Texts | None = None
    queries: _Texts | None = None
    documents: _Texts | None = None
    items: _Texts | None = None


class _RerankBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    query: str
    documents: _Texts
    top_n: Annotated[int, msgspec.Meta(ge=0)] = 0


_EMBEDDING: Final = msgspec.json.Decoder(_EmbeddingBody)
_SCORE: Final = msgspec.json.Decoder(_ScoreBody)
_RERANK: Final = msgspec.json.Decoder(_RerankBody)


class PoolingRoutes:
    """The routes over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._config = service.config

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register them."""
        router.add_post("/v1/embeddings", self._embeddings)
        router.add_post("/pooling", self._pooling)
        for prefix in ("", "/v1"):
            router.add_post(f"{prefix}/score", self._score)
        for prefix in ("", "/v1", "/v2"):
            router.add_post(f"{prefix}/rerank", self._rerank)

    async def _embeddings(self, request: web.Request) -> web.StreamResponse:
        return await self._embed(request, "embd", "embedding", "embedding")

    async def _pooling(self, request: web.Request) -> web.StreamResponse:
        return await self._embed(request, "pooling", "pooling", "data")

    async def _embed(self, request: web.Request, prefix: str, object_name: str, field: str) -> web.StreamResponse:
        service = self._service
        with service.concurrency.request():
            admitted = await service.admit(request)
            body = decode_body(admitted.body, _EMBEDDING)
            check_model(self._config, body.model)
            if object_name == "pooling":
                _check_pooling(body)
            dimensions = self._dimensions(body.dimensions)
            prompts = self._prompts(body)
            lengths = [prompt.tokens for prompt in prompts]
            await service.prefill(admitted, lengths)
            vectors = [embed(prompt.encode(), self._config.seed, dimensions) for prompt in prompts]
            shown = [_base64(vector) if body.encoding_format == "base64" else vector for vector in vectors]
            return json_reply(
                {
                    "id": service.answer_id(f"{prefix}-", request),
                    "object": "list",
                    "created": int(time.time()),
                    "model": self._config.model,
                    "data": [
                        {"index": place, "object": object_name, field: vector} for place, vector in enumerate(shown)
                    ],
                    "usage": _usage(sum(lengths)),
                }
            )

    def _dimensions(self, asked: int | None) -> int:
        if asked is not None and not 1 <= asked <= EMBEDDING_SIZE:
            words = f"only supports dimensions in range [1, {EMBEDDING_SIZE}], got {asked}."
            raise ApiError(400, f"Model {self._config.model!r} {words}")
        return asked or EMBEDDING_SIZE

    def _prompts(self, body: _EmbeddingBody) -> list[Prompt]:
        seed = self._config.seed
        if body.messages:
            prompts = [prompt_of_chat(body.messages, seed, generation_prompt=False)]
        elif body.input is None:
            raise ApiError(400, "1 validation error: input: Field required", "Bad Request", "body.input")
        else:
            prompts = [
                prompt_of_text(one, seed) if isinstance(one, str) else prompt_of_ids(one, seed)
                for one in _batch(body.input)
            ]
        for prompt in prompts:
            check_prompt(prompt, self._config)
        return prompts

    async def _score(self, request: web.Request) -> web.StreamResponse:
        service = self._service
        with service.concurrency.request():
            admitted = await service.admit(request)
            body = decode_body(admitted.body, _SCORE)
            check_model(self._config, body.model)
            queries, documents = _pairs(body)
            scores, tokens = self._scores(queries, documents)
            await service.prefill(admitted, tokens)
            return json_reply(
                {
                    "id": service.answer_id("score-", request),
                    "object": "list",
                    "created": int(time.time()),
                    "model": self._config.model,
                    "data": [{"index": place, "object": "score", "score": score} for place, score in enumerate(scores)],
                    "usage": _usage(sum(tokens)),
                }
            )

    async def _rerank(self, request: web.Request) -> web.StreamResponse:
        service = self._service
        with service.concurrency.request():
            admitted = await service.admit(request)
            body = decode_body(admitted.body, _RERANK)
            check_model(self._config, body.model)
            documents = _listed(body.documents)
            scores, tokens = self._scores([body.query], documents)
            await service.prefill(admitted, tokens)
            best_first = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
            results = [
                {
                    "index": place,
                    "document": {"text": documents[place], "multi_modal": None},
                    "relevance_score": scores[place],
                }
                for place in best_first[: body.top_n or None]
            ]
            return json_reply(
                {
                    "id": service.answer_id("score-", request),
                    "model": self._config.model,
                    "usage": {"prompt_tokens": sum(tokens), "total_tokens": sum(tokens)},
                    "results": results,
                }
            )

    def _scores(self, queries: list[str], documents: list[str]) -> tuple[list[float], list[int]]:
        """Each document's score, with the only query or its own, and the lengths of all prompts."""
        if len(queries) not in (1, len(documents)) and documents:
            raise ApiError(400, "Input lengths must be either 1:1, 1:N or N:N")
        if not queries:
            raise ApiError(400, "At least one text element must be given")
        if not documents:
            raise ApiError(400, "At least one text_pair element must be given")
        prompts = [prompt_of_text(text, self._config.seed) for text in (*queries, *documents)]
        for prompt in prompts:
            check_prompt(prompt, self._config)
        vectors = [embed(prompt.encode(), self._config.seed) for prompt in prompts]
        asked, found = vectors[: len(queries)], vectors[len(queries) :]
        if len(asked) == 1:
            asked *= len(found)
        scores = [similarity(one, other) for one, other in zip(asked, found, strict=True)]
        return scores, [prompt.tokens for prompt in prompts]


def _batch(given: str | list[str | TokenId | list[TokenId]]) -> list[str | list[int]]:
    """The inputs: one text, one list of ids, or a list of either."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise ApiError(400, "You must pass at least one prompt")
    several = [one for one in given if not isinstance(one, int)]
    if several and len(several) != len(given):
        raise ApiError(400, "1 validation error: input: texts and token ids are mixed", "Bad Request", "body.input")
    return several or [[one for one in given if isinstance(one, int)]]


def _check_pooling(body: _EmbeddingBody) -> None:
    if body.dimensions is not None:
        words = "dimensions is currently not supported (parameter=dimensions)"
        raise ApiError(400, words, param="dimensions")
    if body.task == "token_embed":
        words = "Try switching the model's pooling_task via --pooler-config.task token_embed. (parameter=task)"
        raise ApiError(400, words, param="task")
    if body.task not in (None, "embed"):
        words = f"Unsupported task: {body.task!r} Supported tasks: ['token_embed', 'embed'] (parameter=task)"
        raise ApiError(400, words, param="task")


def _pairs(body: _ScoreBody) -> tuple[list[str], list[str]]:
    """The first pair of fields that is whole, in the order in which vLLM tries them."""
    for one, other in (
        (body.queries, body.documents),
        (body.queries, body.items),
        (body.data_1, body.data_2),
        (body.text_1, body.text_2),
    ):
        if one is not None and other is not None:
            return _listed(one), _listed(other)
    raise ApiError(400, "1 validation error: queries: Field required", "Bad Request", "body.queries")


def _listed(texts: _Texts) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def _usage(tokens: int) -> dict[str, Any]:
    counts = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
    return counts | {"prompt_tokens_details": None, "completion_tokens_details": None}


def _base64(vector: list[float]) -> str:
    """Floats of 32 bits, little-endian, in base64."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
