"""What a generation request's body means, and the errors that vLLM answers where it means nothing."""

import zlib
from array import array
from typing import Annotated, Final, Literal, NamedTuple, TypeVar

import msgspec

from loadgen.sim import tokenizer
from loadgen.sim.config import SimConfig

Body = TypeVar("Body")
Kind = Literal["chat", "completion"]
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]

_COMPLETION_MAX_TOKENS: Final = 16  # the OpenAI API's default
_LONGEST_NATURAL_ANSWER: Final = 1024


class ApiError(Exception):
    """An error answer in vLLM's shape."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """A generation request as the simulated engine answers it."""

    kind: Kind
    prompt_tokens: int
    output_tokens: int
    finish_reason: Literal["stop", "length", "abort"]
    draw: int
    """A number that depends on the prompt and the seed alone: it chooses the answer's words."""
    stream: bool
    include_usage: bool
    continuous_usage: bool
    prompt_ids: list[int] | None
    """Given where the request asks for token ids in the answer."""


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class _Url(msgspec.Struct):
    url: str


class ImageBlock(msgspec.Struct, tag_field="type", tag="image_url"):
    """An image among the blocks of a message."""

    image_url: _Url

    @property
    def source(self) -> str:
        """Its address, or itself as a data URI."""
        return self.image_url.url


class _Sound(msgspec.Struct):
    data: str
    format: str


class AudioBlock(msgspec.Struct, tag_field="type", tag="input_audio"):
    """A sound among the blocks of a message."""

    input_audio: _Sound

    @property
    def source(self) -> str:
        """Its file in base64."""
        return self.input_audio.data


class Message(msgspec.Struct):
    """One message of a chat's body."""

    role: str
    content: str | list[_TextBlock | ImageBlock | AudioBlock] | None = None

    @property
    def text(self) -> str:
        """The message's words: its text blocks, joined as they are."""
        if isinstance(self.content, list):
            return "".join(block.text for block in self.content if isinstance(block, _TextBlock))
        return self.content or ""

    @property
    def media(self) -> list[ImageBlock | AudioBlock]:
        """Its images and sounds, in order; they are counted, and not decoded."""
        if isinstance(self.content, list):
            return [block for block in self.content if not isinstance(block, _TextBlock)]
        return []


class Conversation(NamedTuple):
    """The arguments of `tokenizer.encode_chat` and `count_chat`, and what distinguishes its media from others."""

    messages: list[tuple[str, str]]
    images: int
    audio: int
    sources: list[str]


def read_conversation(messages: list[Message]) -> Conversation:
    """What the simulated model sees of a chat."""
    media = [block for message in messages for block in message.media]
    images = sum(isinstance(block, ImageBlock) for block in media)
    return Conversation(
        [(message.role, message.text) for message in messages],
        images,
        len(media) - images,
        [block.source for block in media],
    )


class _Body(msgspec.Struct, kw_only=True):
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    return_token_ids: bool | None = None


class _ChatBody(_Body, kw_only=True):
    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]


class _CompletionBody(_Body, kw_only=True):
    prompt: str | list[str | TokenId | list[TokenId]]


class TokenizeBody(msgspec.Struct, kw_only=True):
    """The body of `/tokenize`: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """The body of `/detokenize`."""

    model: str | None = None
    tokens: list[TokenId]


_CHAT: Final = msgspec.json.Decoder(_ChatBody)
_COMPLETION: Final = msgspec.json.Decoder(_CompletionBody)


def decode_body(body: bytes, decoder: msgspec.json.Decoder[Body]) -> Body:
    """Read a body.

    Raises:
        ApiError: 400, where it is no JSON, or a field is missing or of the wrong type.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise ApiError(400, f"1 validation error: {error}", "Bad Request") from None
    except msgspec.DecodeError as error:
        raise ApiError(400, f"1 validation error: JSON decode error: {error}", "Bad Request") from None


def refuse_fields(body: bytes, rejected: tuple[str, ...]) -> None:
    """Raise ApiError (400) where the body has one of these fields at its top level."""
    try:
        fields = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return  # told when the body is read in earnest
    for field in rejected:
        if isinstance(fields, dict) and field in fields:
            raise ApiError(400, f"Unrecognized request argument supplied: {field}", param=field)


def check_model(config: SimConfig, model: str | None) -> None:
    """Raise ApiError (404) for another model than the engine's; none named is the engine's."""
    if model is not None and model != config.model:
        raise ApiError(404, f"The model `{model}` does not exist.", "NotFoundError", "model")


def parse_generation(kind: Kind, body: bytes, config: SimConfig) -> Generation:
    """Read the body of a generation request.

    An output that does not fit into the context is shortened silently, as vLLM does. Without `ignore_eos` the answer
    ends by `stop` at a length drawn from the prompt and the seed, between `min_tokens` and `max_tokens`.

    Raises:
        ApiError: 404 for another model, 400 for anything else that cannot be answered.
    """
    if kind == "chat":
        chat = decode_body(body, _CHAT)
        check_model(config, chat.model)
        return _chat(chat, config)
    completion = decode_body(body, _COMPLETION)
    check_model(config, completion.model)
    return _completion(completion, config)


def _chat(body: _ChatBody, config: SimConfig) -> Generation:
    messages, images, audio, sources = read_conversation(body.messages)
    draw = config.seed
    for role, text in messages:
        draw = zlib.crc32(text.encode(), zlib.crc32(role.encode(), draw))
    for source in sources:
        draw = zlib.crc32(source.encode(), draw)
    asked = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    ids = tokenizer.encode_chat(messages, images=images, audio=audio) if body.return_token_ids else None
    tokens = tokenizer.count_chat(messages, images=images, audio=audio)
    return _generation("chat", body, config, tokens, asked, draw, ids)


def _completion(body: _CompletionBody, config: SimConfig) -> Generation:
    prompt = body.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]  # type: ignore[assignment]  # a batch of one
    asked = body.max_tokens if body.max_tokens is not None else _COMPLETION_MAX_TOKENS
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt) if body.return_token_ids else None
        draw = zlib.crc32(prompt.encode(), config.seed)
        return _generation("completion", body, config, tokenizer.count(prompt), asked, draw, ids)
    tokens = [token for token in prompt if isinstance(token, int)]
    if len(tokens) != len(prompt):
        raise ApiError(400, "A request has one prompt: a text or a list of token ids.", param="prompt")
    draw = zlib.crc32(array("q", tokens).tobytes(), config.seed)
    return _generation("completion", body, config, len(tokens), asked, draw, tokens if body.return_token_ids else None)


def _generation(
    kind: Kind, body: _Body, config: SimConfig, prompt_tokens: int, asked: int | None, draw: int, ids: list[int] | None
) -> Generation:
    if body.n is not None and body.n != 1:
        raise ApiError(400, f"n must be 1, got {body.n}.", param="n")
    if asked is not None and asked < 1:
        raise ApiError(400, f"max_tokens must be at least 1, got {asked}.", param="max_tokens")
    if prompt_tokens < 1:
        raise ApiError(400, "The prompt is empty.", param="prompt")
    if prompt_tokens >= config.max_model_len:
        raise ApiError(
            400,
            f"The context is {config.max_model_len} tokens long; the prompt of {prompt_tokens} tokens leaves no room.",
            param="input_tokens",
        )
    left = config.max_model_len - prompt_tokens
    limit = left if asked is None else min(asked, left)
    least = body.min_tokens or 0
    if least < 0 or (asked is not None and least > asked):
        raise ApiError(400, f"min_tokens must be between 0 and max_tokens, got {least}.", param="min_tokens")
    output_tokens, finish_reason = limit, "length"
    if not body.ignore_eos and least < limit:
        output_tokens, finish_reason = _natural_length(max(least, 1), limit, draw), "stop"
    options = body.stream_options or _StreamOptions()
    return Generation(
        kind=kind,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        finish_reason=finish_reason,  # type: ignore[arg-type]
        draw=draw,
        stream=bool(body.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        prompt_ids=ids,
    )


def _natural_length(least: int, limit: int, draw: int) -> int:
    """Uniform between the least length and the limit, but never far beyond what a model says of its own accord."""
    most = max(least, min(limit, _LONGEST_NATURAL_ANSWER))
    return least + draw % (most - least + 1)
