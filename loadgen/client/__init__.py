"""One request by hand: a Python client of a vLLM server over the HTTP target, for chats, labels, scores, tokens and
embeddings (docs/client.md).

Imports: measure, profile, targets, workload. Begin with `client.py`.
"""

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
