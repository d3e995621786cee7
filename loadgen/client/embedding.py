"""The vectors of texts."""

from collections.abc import Sequence

import msgspec

from loadgen.client.connection import Connection, typed
from loadgen.client.errors import RequestError
from loadgen.client.types import EmbeddingResponse, Usage
from loadgen.targets.http.chunks import PROTOCOL


class _Item(msgspec.Struct):
    index: int
    embedding: tuple[float, ...]


class _Embeddings(msgspec.Struct):
    data: list[_Item]
    usage: Usage | None = None


async def embed(connection: Connection, texts: str | Sequence[str]) -> EmbeddingResponse:
    """What `VLLMClient.aembed` promises."""
    given = [texts] if isinstance(texts, str) else list(texts)
    if not given:
        raise ValueError("no text to embed")
    url = connection.server.api("embeddings")
    raw = await connection.post(url, {"input": given, "encoding_format": "float"})
    answer = typed(raw, _Embeddings, f"POST {url}")
    items = sorted(answer.data, key=lambda item: item.index)
    if [item.index for item in items] != list(range(len(given))) or not all(item.embedding for item in items):
        words = f"{len(items)} vectors, some of them empty or twice, for {len(given)} texts"
        raise RequestError(f"POST {url}", PROTOCOL, words, 200)
    return EmbeddingResponse(tuple(item.embedding for item in items), answer.usage, raw)
