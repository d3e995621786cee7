"""The endpoints by kind of workload. A new kind is one new file, one line here, and its row in `profile.kinds`."""

from collections.abc import Callable
from typing import Final

from loadgen import profile
from loadgen.targets.base import TargetInfo
from loadgen.targets.http.endpoints.choice import choice_endpoint
from loadgen.targets.http.endpoints.embed import embed_endpoint
from loadgen.targets.http.endpoints.endpoint import Endpoint
from loadgen.targets.http.endpoints.messages import messages_endpoint
from loadgen.targets.http.endpoints.pooling import pooling_endpoint, rerank_endpoint
from loadgen.targets.http.endpoints.responses import responses_endpoint
from loadgen.targets.http.endpoints.score import score_endpoint
from loadgen.targets.http.endpoints.tokenize import tokenize_endpoint
from loadgen.targets.http.endpoints.transcribe import transcribe_endpoint

ENDPOINTS: Final[dict[str, Callable[[profile.Workload, TargetInfo], Endpoint]]] = {
    "chat": lambda workload, info: Endpoint(path="chat/completions", streams=True),
    "completion": lambda workload, info: Endpoint(path="completions", streams=True),
    "choice": choice_endpoint,
    "score": score_endpoint,
    "tokenize": tokenize_endpoint,
    "embed": embed_endpoint,
    "rerank": rerank_endpoint,
    "pooling": pooling_endpoint,
    "responses": responses_endpoint,
    "messages": messages_endpoint,
    "transcribe": transcribe_endpoint,
}
PATHS: Final = (
    "chat/completions",
    "completions",
    "embeddings",
    "rerank",
    "responses",
    "messages",
    "audio/transcriptions",
)
"""The paths of endpoints under the API's base, by which people may name a server; one that ends another is last."""


def endpoint_of(workload: profile.Workload, info: TargetInfo) -> Endpoint:
    """The endpoint of a workload's kind, on a server of which this is known."""
    return ENDPOINTS[workload.kind](workload, info)
