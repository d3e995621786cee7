"""What a conversation says as one prompt, with its media: written by a chat template or plainly.

Pure: it decodes no media, and knows no engine and no tokenizer. Only a template's file is read, once, with the profile.
"""

import json
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from loadgen.errors import LoadgenError
from loadgen.workload.request import Audio, Image, Message, Part, Text, Video, text_of

if TYPE_CHECKING:
    from jinja2 import Template

DEFAULT_TEMPLATE: Final = "default-template"
PLAIN: Final = "plain"
_OWN: Final = "own"
_SYNTAX: Final = ("{{", "{%", "{#")
"""What makes a text a Jinja2 template."""
_SHOWN: Final = 60
"""Characters of a value that a message shows."""

Turn = dict[str, Any]
"""A message as templates take it: `role`, and a `content` of text or of typed blocks."""
ChatTemplate = Callable[[list[Turn]], str | list[int]]
"""Writes a conversation, and begins the answer to it: as text, or as token ids where a tokenizer does it in code."""


class PromptError(ValueError):
    """A request that cannot be said to the model: it fails, in one line of words, and the run goes on."""


class Format(msgspec.Struct, frozen=True):
    """How a prompt is written: `target.request_format`, read once."""

    kind: Literal["default-template", "plain", "own"]
    template: str | None = None
    """The source of the template where it is the user's own."""


class Prompt(msgspec.Struct, frozen=True):
    """A conversation as one text, or as token ids, and the media that belong to it."""

    text: str | list[int]
    images: tuple[Any, ...] = ()
    audio: tuple[Any, ...] = ()
    """Their sources, in the order in which they stand in the text."""
    special: bool = False
    """A template wrote the text, the model's special tokens included: encode it without adding them again."""


def refuse_videos(parts: Sequence[Part]) -> None:
    """Raise PromptError where there are videos among the parts."""
    count = sum(isinstance(part, Video) for part in parts)
    if count:
        raise PromptError(f"video is not supported, and the request has {count} video{'s' if count > 1 else ''}")


# --- how it is written ------------------------------------------------------------------------------------------------


def prompt_format(value: str) -> Format:
    """Read `target.request_format`: `default-template`, `plain`, a Jinja2 template, or the path of a file of one.

    Raises:
        LoadgenError: it is none of these, the file cannot be read, or the template does not parse.
    """
    if value == DEFAULT_TEMPLATE:
        return Format(DEFAULT_TEMPLATE)
    if value == PLAIN:
        return Format(PLAIN)
    if _has_syntax(value):  # asked before the file system: a long template is no path
        return Format(_OWN, _parsed(value, value))
    source = _file_text(value)
    if not _has_syntax(source):
        raise _refused(value, "the file holds no template")
    return Format(_OWN, _parsed(source, value))


def _has_syntax(text: str) -> bool:
    return any(mark in text for mark in _SYNTAX)


def _file_text(value: str) -> str:
    if not os.path.isfile(value):  # unlike pathlib's, it takes any text, a very long one too
        raise _refused(value, "there is no such format, nor such a file")
    try:
        return Path(value).read_text("utf-8")
    except UnicodeDecodeError:
        raise _refused(value, "the file is no UTF-8 text") from None
    except OSError as fault:
        raise _refused(value, f"the file cannot be read ({fault.strerror})") from None


def _parsed(source: str, value: str) -> str:
    """The source of a template that parses. With an engine it is its tokenizer that compiles it, and writes by it."""
    from jinja2 import TemplateSyntaxError

    try:
        compile_template(source)
    except TemplateSyntaxError as fault:
        raise _refused(value, f"the template does not parse: {_reason(fault)} (line {fault.lineno})") from None
    return source


def _refused(value: str, why: str) -> LoadgenError:
    shown = value if len(value) <= _SHOWN else f"{value[: _SHOWN - 3]}..."
    return LoadgenError(
        f"target.request_format = {json.dumps(shown, ensure_ascii=False)}: {why}; must be {DEFAULT_TEMPLATE}, {PLAIN}, "
        "a Jinja2 template (with {{, {% or {#), or the path of a file that holds one"
    )


# --- from messages to a prompt ----------------------------------------------------------------------------------------


def render(
    messages: Sequence[Message],
    form: Format,
    *,
    chat_template: ChatTemplate | None,
    image_placeholder: str = "<image>",
    audio_placeholder: str = "<|audio|>",
) -> Prompt:
    """Write a conversation as one prompt.

    A template gets media as typed blocks, and places the model's own markers for them. A plain prompt is the messages
    joined with a space, with a placeholder for each item, and a line end after it, at the head of the last user message
    (of the last message where there is none). Media without any text are their placeholders, in every format.

    `chat_template` writes by the template of the format, the user's own or the model's; None where the model has none.

    Raises:
        PromptError: there is nothing to say, a video, no chat template, or a template that fails.
    """
    media = _media(messages)
    texts = [text_of(message) for message in messages]
    placeholders = "".join(f"{image_placeholder if isinstance(part, Image) else audio_placeholder}\n" for part in media)
    text: str | list[int]
    special = False
    if not any(text.strip() for text in texts):
        if not media:
            raise PromptError("nothing to say: the request has neither text nor media")
        text = placeholders
    elif form.kind == PLAIN:
        text = _plain(messages, texts, placeholders)
    else:
        text = _templated(messages, form, chat_template)
        special = True
    return Prompt(
        text,
        tuple(part.source for part in media if isinstance(part, Image)),
        tuple(part.source for part in media if isinstance(part, Audio)),
        special,
    )


def _media(messages: Sequence[Message]) -> list[Image | Audio]:
    """The images and sounds of a conversation, in order. Raises PromptError where there is a video."""
    media: list[Image | Audio] = []
    for message in messages:
        if not isinstance(message.content, str):
            refuse_videos(message.content)
            media += [part for part in message.content if isinstance(part, Image | Audio)]
    return media


def _plain(messages: Sequence[Message], texts: list[str], placeholders: str) -> str:
    if placeholders:
        users = [i for i, message in enumerate(messages) if message.role == "user"]
        place = users[-1] if users else len(messages) - 1
        texts[place] = placeholders + texts[place]
    return " ".join(text for text in texts if text.strip())


def _templated(messages: Sequence[Message], form: Format, chat_template: ChatTemplate | None) -> str | list[int]:
    turns = [{"role": message.role, "content": _content(message)} for message in messages]
    whose = "the template of target.request_format" if form.kind == _OWN else "the model's chat template"
    if chat_template is None:
        raise PromptError(f'the model has no chat template: set target.request_format to "{PLAIN}" or to a template')
    try:
        written = chat_template(turns)
    except Exception as fault:  # whatever a foreign template can do wrong
        raise PromptError(f"{whose} fails: {_reason(fault)}") from fault
    if not isinstance(written, str | list):
        raise PromptError(f"{whose} writes neither a text nor token ids")
    if not (written.strip() if isinstance(written, str) else written):
        raise PromptError(f"{whose} writes an empty prompt")
    if isinstance(written, str):
        _check_blocks(turns, written, whose)
    return written


def _content(message: Message) -> str | list[dict[str, str]]:
    # Many templates take nothing but text, so blocks are for messages that cannot do without.
    if isinstance(message.content, str) or not any(isinstance(part, Image | Audio) for part in message.content):
        return text_of(message)
    return [_block(part) for part in message.content]


def _block(part: Part) -> dict[str, str]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    return {"type": "image" if isinstance(part, Image) else "audio"}


def _check_blocks(turns: Sequence[Turn], text: str, whose: str) -> None:
    """Refuse the work of a template that knows text alone, and so wrote the list of blocks out as Python shows it."""
    for turn in turns:
        if isinstance(turn["content"], list) and str(turn["content"]) in text:
            raise PromptError(
                f"{whose} has no place for images or audio; if the model takes them, "
                f'set target.request_format to "{PLAIN}" or to a template that has'
            )


def _reason(fault: Exception) -> str:
    return " ".join(str(fault).split()) or type(fault).__name__


def compile_template(source: str) -> "Template":
    """Compile a template in Jinja2's sandbox, with the settings, tags, filters and functions of chat templates.

    Raises:
        jinja2.TemplateSyntaxError: it does not parse.
    """
    from jinja2 import TemplateError, ext, nodes, parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(ext.Extension):
        """The block of transformers' own around what the model says: it marks that, and writes nothing."""

        tags: set[str] = {"generation"}  # noqa: RUF012  (as Jinja2 declares it)

        def parse(self, parser: parser.Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols, Generation]
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = _strftime_now
    environment.filters["tojson"] = _to_json
    return environment.from_string(source)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # the local date, as the templates' authors mean it


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja2's own filter escapes for HTML, which no model has learnt to read.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
