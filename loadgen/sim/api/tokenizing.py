"""The routes `/tokenize` and `/detokenize`."""

from typing import Final

import msgspec
from aiohttp import web

from loadgen.sim.api.protocol import ApiError, TokenId, check_model, decode_body, json_reply
from loadgen.sim.config import SimConfig
from loadgen.sim.model import tokenizer
from loadgen.sim.model.conversation import Message, prompt_of_chat


class _TokenizeBody(msgspec.Struct, kw_only=True):
    """A prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False


class _DetokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[TokenId]


_TOKENIZE: Final = msgspec.json.Decoder(_TokenizeBody)
_DETOKENIZE: Final = msgspec.json.Decoder(_DetokenizeBody)


class TokenizingRoutes:
    """The routes for one model."""

    def __init__(self, config: SimConfig) -> None:
        self._config = config

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register them."""
        router.add_post("/tokenize", self._tokenize)
        router.add_post("/detokenize", self._detokenize)

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = decode_body(await request.read(), _TOKENIZE)
        check_model(self._config, body.model)
        if body.messages is not None:
            seed = self._config.seed
            ids = prompt_of_chat(body.messages, seed, generation_prompt=body.add_generation_prompt).encode()
        elif body.prompt is not None:
            ids = tokenizer.encode(body.prompt)
        else:
            raise ApiError(400, "1 validation error: prompt: Field required", "Bad Request", "prompt")
        return json_reply(
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
        return json_reply({"prompt": tokenizer.decode(body.tokens)})
