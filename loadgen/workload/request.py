"""What one request says, before any target gives it a body."""

import msgspec


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation: `role` is `system`, `user` or `assistant`."""

    role: str
    content: str


class Request(msgspec.Struct, frozen=True):
    """What request `index` of a run asks. Exactly one of `messages` and `prompt` is given.

    `prompt_tokens` is what the workload aimed at (the template's tokens included), `output_tokens` what it asks for;
    None where it asks for nothing particular.
    """

    index: int
    messages: tuple[Message, ...] | None = None
    prompt: str | tuple[int, ...] | None = None
    """Text, or token ids, for `kind = "completion"`."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None


class Tokenization(msgspec.Struct, frozen=True):
    """How the target's tokenizer counts the words of synthetic text, learnt once before a run.

    `word_tokens[i]` is the number of tokens of vocabulary word i with a space before it. Where the words could not be
    told apart it holds one mean for all and `exact` is false. `template_tokens` is what the chat template adds to a
    conversation of one user message.
    """

    source: str
    """Who counted: `server`, `tokenizer`, or `estimate`."""
    exact: bool
    word_tokens: tuple[float, ...]
    template_tokens: int = 0
    vocabulary_size: int | None = None
    """Number of token ids that prompts of token ids may use; None where unknown."""
    special_tokens: int = 0
    """What the tokenizer adds to plain text by itself, such as one for the begin of the text."""
    first_words: tuple[int, ...] = ()
    """Vocabulary words that count the same without a space before them, as at the start of a text; empty: not known."""
