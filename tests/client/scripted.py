"""A scripted vLLM on loopback, for what no real server and not the simulator can be made to do."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.targets.http.loopback import Loopback, Seen, reply, serving

END = 3
"""The id of the token that ends an answer."""
END_TEXT = "<end>"

MODELS = {"data": [{"id": "tiny", "max_model_len": 1024}]}


def answer(content: str | None, finish_reason: str = "stop", logprobs: Any = None, **more: Any) -> dict[str, Any]:
    """The body of a chat's answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish_reason}
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    return {"choices": [choice | {"logprobs": logprobs} | more], "usage": usage}


def letters(text: str, logprob: float) -> dict[str, Any]:
    """The log-probabilities of an answer whose tokens are its letters and its end, all of one log-probability."""
    pairs = [(letter, ord(letter)) for letter in text] + [(END_TEXT, END)]
    entries = [{"token": f"token_id:{token}", "logprob": logprob, "bytes": list(t.encode())} for t, token in pairs]
    return {"content": entries}


class Vllm:
    """What the scripted server answers: a model whose tokens are letters, each as probable as 1/e**`nats`.

    `obeys` is the body field that constrains an answer; one that is constrained says the first label. `masks`: it tells
    log-probabilities after the constraint, as vLLM does.
    """

    def __init__(
        self,
        version: str | None = "0.32.0",
        obeys: str | None = "structured_outputs",
        free: str = "hello",
        masks: bool = True,
        nats: float = 4.0,
    ) -> None:
        self.version = version
        self.obeys = obeys
        self.free = free
        self.masks = masks
        self.nats = nats

    def respond(self, path: str, body: Any) -> Any:
        """The answer to a request; None where there is no such address."""
        match path:
            case "/v1/models":
                return MODELS
            case "/version":
                return None if self.version is None else {"version": self.version}
            case "/v1/chat/completions":
                return self._chat(body)
            case "/tokenize":
                return self._tokenize(body)
            case "/detokenize":
                return {"prompt": "".join(map(chr, body["tokens"]))}
            case "/v1/completions":
                entries = [None, *({str(token): {"logprob": -self.nats}} for token in body["prompt"][1:])]
                return {"choices": [{"text": "", "prompt_logprobs": entries}]}
        return None

    def _chat(self, body: Any) -> Any:
        said, logprob = self.free, -self.nats
        constraint = body.get(self.obeys) if self.obeys else None
        if constraint is not None:
            said = (constraint["choice"] if isinstance(constraint, dict) else constraint)[0]
            logprob = 0.0 if self.masks else logprob
        ids = [*map(ord, said), END]
        return answer(said, logprobs=letters(said, logprob) if body.get("logprobs") else None, token_ids=ids)

    def _tokenize(self, body: Any) -> Any:
        text = body.get("prompt")
        if text is None:
            text = "".join(f"<{message['role']}>{message['content']}" for message in body["messages"]) + "<assistant>"
        strings = [letter.replace(" ", "Ġ") for letter in text] if body.get("return_token_strs") else None
        return {"count": len(text), "tokens": [ord(letter) for letter in text], "token_strs": strings}


@asynccontextmanager
async def scripted(respond: Callable[[str, Any], Any]) -> AsyncIterator[Loopback]:
    """A server that answers each request as `respond(path, body)` says: with an object, a whole answer in bytes, or
    404 for None."""

    async def write(seen: Seen, writer: asyncio.StreamWriter) -> None:
        said = respond(seen.path, seen.json if seen.body else None)
        if said is None:
            said = reply(404, {"detail": "Not Found"})
        writer.write(said if isinstance(said, bytes) else reply(200, said))
        await writer.drain()

    async with serving(write) as server:
        yield server
