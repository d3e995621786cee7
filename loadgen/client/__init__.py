"""A Python client of a vLLM server: chat, choice among labels, scoring, tokens and embeddings (docs/client.md)."""

from loadgen.client.client import VLLMClient
from loadgen.client.types import (
    ChatMessage,
    ChatResponse,
    EmbeddingResponse,
    LabelError,
    ModelInfo,
    RequestError,
    ScoringResponse,
    Token,
    Tokenized,
    TokenLogprob,
    Usage,
)
from loadgen.workload.request import Audio, Image, Text

__all__ = [
    "Audio",
    "ChatMessage",
    "ChatResponse",
    "EmbeddingResponse",
    "Image",
    "LabelError",
    "ModelInfo",
    "RequestError",
    "ScoringResponse",
    "Text",
    "Token",
    "TokenLogprob",
    "Tokenized",
    "Usage",
    "VLLMClient",
]
