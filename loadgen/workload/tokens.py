"""How many tokens each word of the vocabulary is: learnt from a server's answer or from a tokenizer file, or
estimated.

Text of these words, joined by single spaces, then has as many tokens as its words together: the tokenizers of
language models split at spaces before anything else, and a piece holds its word's leading space.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from loadgen.errors import LoadgenError
from loadgen.workload.prompt import compile_template
from loadgen.workload.request import Tokenization
from loadgen.workload.words import VOCABULARY

PROBE_TEXT: Final = " ".join(VOCABULARY)
"""The text whose tokens tell the count of each word with a space before it."""
PROBE_LINES: Final = "\n".join(VOCABULARY)
"""The text whose tokens tell the count of each word with none."""

ESTIMATED_TOKENS_PER_WORD: Final = 1.0
"""Measured: each word of the vocabulary is exactly one token of Mistral's 32,000 sentencepiece pieces and of
its 131,072 byte-level ones. A model with a far smaller vocabulary needs more (1.7 in one of 4,096 learnt from
program text)."""
ESTIMATED_TEMPLATE_TOKENS: Final = 8
"""What ChatML adds to one user message: `<|im_start|>`, `user`, a line end, the message, `<|im_end|>`, a line
end, `<|im_start|>`, `assistant`, a line end. Templates with a system message of their own add more."""

_MARKS: Final = ("<0x0A>", "Ġ", "▁", "Ċ", " ", "\n")
"""Spaces and line ends as byte-level BPE, sentencepiece and decoded pieces write them."""
_LINE_ENDS: Final = ("<0x0A>", "Ċ", "\n")


def from_token_strings(
    token_strs: Sequence[str],
    template_tokens: int,
    source: str,
    *,
    line_strs: Sequence[str] | None = None,
    vocabulary_size: int | None = None,
) -> Tokenization:
    """Learn the counts from the tokens of `PROBE_TEXT`, as strings in order.

    The strings may carry their space as byte-level BPE does (`Ġthe`), as sentencepiece does (`▁the`) or
    plainly (` the`), a word may be any number of pieces, and a space may be a piece of its own; tokens before
    the first and after the last word are `special_tokens`. Where the strings do not spell the words in this
    way, or one of them spans two words, all words get one mean and `exact` is false.

    The first word of the text has no space before it. It is "the", for which that makes no difference in any
    vocabulary known to us. `line_strs`, the tokens of `PROBE_LINES`, tell for which other words it makes none
    (`first_words`).

    `template_tokens` is the count of `PROBE_TEXT` as one user message less the count of the plain text
    without special tokens. `source` and `vocabulary_size` are passed on as they are.
    """
    spaced = _align(token_strs)
    if spaced is None:
        return from_count(len(token_strs), template_tokens, source, vocabulary_size=vocabulary_size)
    counts, special_tokens = spaced
    lines = _align(line_strs) if line_strs is not None else None
    return Tokenization(
        source=source,
        exact=True,
        word_tokens=tuple(map(float, counts)),
        template_tokens=template_tokens,
        vocabulary_size=vocabulary_size,
        special_tokens=special_tokens,
        first_words=_equal_places(counts, lines[0]) if lines is not None else (),
    )


def from_count(tokens: int, template_tokens: int, source: str, *, vocabulary_size: int | None = None) -> Tokenization:
    """Learn the mean from the number of tokens of `PROBE_TEXT`, where a server tells no more than that."""
    mean = max(tokens, 1) / len(VOCABULARY)
    return Tokenization(
        source=source,
        exact=False,
        word_tokens=(mean,) * len(VOCABULARY),
        template_tokens=template_tokens,
        vocabulary_size=vocabulary_size,
    )


def estimate(template_tokens: int = ESTIMATED_TEMPLATE_TOKENS) -> Tokenization:
    """Counts for where nobody can be asked: one token a word and, for chats, a ChatML template."""
    return Tokenization(
        source="estimate",
        exact=False,
        word_tokens=(ESTIMATED_TOKENS_PER_WORD,) * len(VOCABULARY),
        template_tokens=template_tokens,
    )


def from_tokenizer(path: str | Path, template: str | None = None) -> Tokenization:
    """Learn the counts from a `tokenizer.json`, or a folder that holds one, with the library `tokenizers`.

    `template` is a chat template (Jinja, as Hugging Face models carry them); without one, a folder's own is
    used (`chat_template.jinja` or `tokenizer_config.json`), and without that `template_tokens` is 0.

    Raises:
        LoadgenError: there is no such library, no tokenizer in that place, or its template cannot be rendered.
    """
    path = Path(path)
    folder = path if path.is_dir() else None
    tokenizer = _load(path / "tokenizer.json" if folder else path)
    config = _read_config(folder) if folder else {}
    if template is None and folder:
        template = _chat_template(folder, config)

    # The piece of text behind each token, by its offsets: unlike the token's own string it is free of any
    # vocabulary's marks.
    text = _pieces(tokenizer, PROBE_TEXT)
    template_tokens = 0
    if template is not None:
        conversation = _render(template, config, path)
        template_tokens = len(tokenizer.encode(conversation, add_special_tokens=False).ids) - len(text)
    learnt = from_token_strings(
        text,
        template_tokens,
        "tokenizer",
        line_strs=_pieces(tokenizer, PROBE_LINES),
        vocabulary_size=tokenizer.get_vocab_size(with_added_tokens=False),
    )
    special_tokens = len(tokenizer.encode(PROBE_TEXT).ids) - len(text)
    return msgspec.structs.replace(learnt, special_tokens=special_tokens)


def _align(pieces: Sequence[str]) -> tuple[list[int], int] | None:
    """Count the pieces of each vocabulary word, and those around them all; None where they do not fit.

    A piece of nothing but space belongs to the word that follows it; one of nothing but a line end to none.
    """
    counts = [0] * len(VOCABULARY)
    special = spaces = 0
    word, seen = 0, 0  # the next letter is VOCABULARY[word][seen]
    for piece in pieces:
        letters = _letters(piece)
        if not letters:
            spaces += not any(mark in piece for mark in _LINE_ENDS)
        elif word < len(VOCABULARY) and VOCABULARY[word].startswith(letters, seen):
            counts[word] += 1 + spaces
            spaces = 0
            seen += len(letters)
            if seen == len(VOCABULARY[word]):
                word, seen = word + 1, 0
        elif (word, seen) == (0, 0) or word == len(VOCABULARY):
            special += 1
        else:
            return None
    return (counts, special) if word == len(VOCABULARY) else None


def _letters(piece: str) -> str:
    for mark in _MARKS:
        piece = piece.replace(mark, "")
    return piece


def _equal_places(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    return tuple(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a == b)


# --- tokenizer files --------------------------------------------------------------------------------------------------


def _load(file: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        hint = "pip install 'loadgen[tokenizers]'"
        raise LoadgenError(f"workload.tokenizer needs the library tokenizers: {hint}") from None
    if not file.is_file():
        raise LoadgenError(f"workload.tokenizer: there is no file {file}")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as fault:  # the library raises nothing more specific
        raise LoadgenError(f"workload.tokenizer: {file} cannot be read as a tokenizer: {fault}") from None


def _pieces(tokenizer: Any, text: str) -> list[str]:
    return [text[start:end] for start, end in tokenizer.encode(text, add_special_tokens=False).offsets]


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text("utf-8"))
    except ValueError as fault:
        raise LoadgenError(f"workload.tokenizer: {file} is no JSON: {fault}") from None
    return config if isinstance(config, dict) else {}


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _render(template: str, config: dict[str, Any], path: Path) -> str:
    """One user message of `PROBE_TEXT` as a server writes it, with the settings that chat templates expect."""
    special = {name: _token_text(config.get(name)) for name in ("bos_token", "eos_token")}
    messages = [{"role": "user", "content": PROBE_TEXT}]
    known = {
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
        **special,
    }  # defined, as transformers has it
    try:
        return compile_template(template).render(messages=messages, **known)
    except Exception as fault:  # whatever a foreign template can do wrong
        raise LoadgenError(
            f"workload.tokenizer: the chat template of {path} cannot be rendered ({fault}); "
            f"name the tokenizer.json itself to do without"
        ) from None


def _token_text(token: Any) -> str:
    """A special token of `tokenizer_config.json`: its text, or a table that holds it as `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""
