"""How the tokens of a word are counted: from strings of every style, from a tokenizer file, and not at all."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from loadgen.errors import LoadgenError
from loadgen.profile import Uniform, Workload
from loadgen.workload.synthetic import SyntheticWorkload
from loadgen.workload.tokens import PROBE_LINES, PROBE_TEXT, estimate, from_count, from_token_strings, from_tokenizer
from loadgen.workload.words import VOCABULARY

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def pieces_of(word: str, size: int) -> list[str]:
    """A word cut into pieces of `size` letters, the last one shorter."""
    return [word[i : i + size] for i in range(0, len(word), size)]


def spaced(mark: str, size: int) -> list[str]:
    """The tokens of the probe's text in a tokenizer that writes a space as `mark` and cuts every `size` letters."""
    first, *rest = VOCABULARY
    strings = pieces_of(first, size)
    for word in rest:
        head, *tail = pieces_of(word, size)
        strings += [mark + head, *tail]
    return strings


def cut_counts(size: int) -> tuple[float, ...]:
    return tuple(float(math.ceil(len(word) / size)) for word in VOCABULARY)


def test_the_vocabulary_is_of_short_plain_words_without_repeats() -> None:
    assert 600 <= len(VOCABULARY) <= 1000
    assert len(set(VOCABULARY)) == len(VOCABULARY)
    assert all(word.isascii() and word.isalpha() and word.islower() and len(word) <= 10 for word in VOCABULARY)
    assert VOCABULARY[0] == "the"


@pytest.mark.parametrize("mark", ["Ġ", "▁", " "])
@pytest.mark.parametrize("size", [1, 2, 3, 20])
def test_pieces_are_counted_word_by_word_in_every_style(mark: str, size: int) -> None:
    learnt = from_token_strings(spaced(mark, size), 5, "server")
    assert learnt.exact
    assert learnt.word_tokens == cut_counts(size)
    assert (learnt.source, learnt.template_tokens, learnt.special_tokens) == ("server", 5, 0)


def test_a_space_that_is_a_token_of_its_own_counts_for_the_word_after_it() -> None:
    strings = [VOCABULARY[0]]
    for word in VOCABULARY[1:]:
        strings += ["▁", word]
    assert from_token_strings(strings, 0, "server").word_tokens == (1.0, *[2.0] * (len(VOCABULARY) - 1))


def test_special_tokens_around_the_text_are_counted_apart() -> None:
    learnt = from_token_strings(["<|begin_of_text|>", *spaced("Ġ", 20), "</s>"], 0, "server")
    assert learnt.word_tokens == cut_counts(20)
    assert learnt.special_tokens == 2


def broken(change: Callable[[list[str]], list[str]]) -> list[str]:
    return change(spaced("Ġ", 20))


@pytest.mark.parametrize(
    "strings",
    [
        broken(lambda s: [*s[:10], s[10] + s[11], *s[12:]]),  # one token spans two words
        broken(lambda s: s[:-1]),  # the end is missing
        broken(lambda s: [*s[:10], "<unk>", *s[11:]]),  # a word that cannot be read
        broken(lambda s: ["?"] * len(s)),
    ],
)
def test_where_the_words_cannot_be_told_apart_all_get_the_mean(strings: list[str]) -> None:
    learnt = from_token_strings(strings, 3, "server")
    assert not learnt.exact
    assert learnt.word_tokens == (len(strings) / len(VOCABULARY),) * len(VOCABULARY)
    assert learnt.template_tokens == 3


def test_words_that_count_the_same_without_a_space_may_be_first() -> None:
    lines = []
    for i, word in enumerate(VOCABULARY):
        # Every third word is two pieces where no space stands before it.
        lines += [word[:1], word[1:], "Ċ"] if i % 3 == 0 else [word, "Ċ"]
    learnt = from_token_strings(spaced("Ġ", 20), 0, "server", line_strs=lines[:-1])
    assert learnt.first_words == tuple(i for i in range(len(VOCABULARY)) if i % 3)


def test_lines_that_cannot_be_read_leave_the_first_words_unknown() -> None:
    learnt = from_token_strings(spaced("Ġ", 20), 0, "server", line_strs=["?"])
    assert learnt.exact
    assert learnt.first_words == ()


def test_a_count_alone_gives_the_mean() -> None:
    learnt = from_count(3 * len(VOCABULARY), 7, "server")
    assert set(learnt.word_tokens) == {3.0}
    assert (learnt.exact, learnt.template_tokens) == (False, 7)


def test_an_estimate_says_that_it_is_one() -> None:
    learnt = estimate()
    assert (learnt.source, learnt.exact, len(learnt.word_tokens)) == ("estimate", False, len(VOCABULARY))


# --- tokenizer files --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE tokenizer that knows some of the words, puts a token before plain text, and has a template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<|begin|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=special,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([PROBE_TEXT, " ".join(VOCABULARY[:200]), PROBE_LINES], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"chat_template": CHATML, "bos_token": {"content": "<|begin|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def count(tokenizer: Tokenizer, text: str, special: bool = False) -> int:
    return len(tokenizer.encode(text, add_special_tokens=special).ids)


def test_a_tokenizer_file_tells_the_tokens_of_each_word(folder: Path, tokenizer: Tokenizer) -> None:
    learnt = from_tokenizer(folder / "tokenizer.json")
    assert (learnt.source, learnt.exact, learnt.special_tokens, learnt.template_tokens) == (
        "tokenizer",
        True,
        1,
        0,
    )
    assert learnt.vocabulary_size == 900
    assert learnt.word_tokens[1:] == tuple(float(count(tokenizer, " " + word)) for word in VOCABULARY[1:])
    assert len(set(learnt.word_tokens)) > 2  # else this tokenizer would test little
    assert learnt.first_words == tuple(
        i for i, word in enumerate(VOCABULARY) if count(tokenizer, word) == learnt.word_tokens[i]
    )


def test_a_folder_brings_its_chat_template(folder: Path, tokenizer: Tokenizer) -> None:
    around = "<|im_start|>user\nthe<|im_end|>\n<|im_start|>assistant\n"
    expected = count(tokenizer, around) - count(tokenizer, "the")
    assert from_tokenizer(folder).template_tokens == expected
    assert from_tokenizer(folder / "tokenizer.json", CHATML).template_tokens == expected


def test_a_template_in_a_file_of_its_own_comes_first(folder: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}", encoding="utf-8")
    assert from_tokenizer(tmp_path).template_tokens == 1


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_prompts_have_the_asked_length_in_a_real_tokenizer(folder: Path, tokenizer: Tokenizer, kind: str) -> None:
    lengths = Uniform(min=40, max=400)
    workload = SyntheticWorkload(Workload(kind=kind, prompt_tokens=lengths), from_tokenizer(folder), 3)  # type: ignore[arg-type]
    for index in range(200):
        request = workload.request(index)
        if request.messages is None:
            assert isinstance(request.prompt, str)
            counted = count(tokenizer, request.prompt, special=True)
        else:
            content = request.messages[0].content
            counted = count(tokenizer, f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n")
        assert counted == request.prompt_tokens


def one_line(fault: pytest.ExceptionInfo[LoadgenError]) -> str:
    assert "\n" not in str(fault.value)
    return str(fault.value)


def test_a_missing_library_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(LoadgenError) as fault:
        from_tokenizer(folder)
    assert "pip install 'loadgen[tokenizers]'" in one_line(fault)


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_a_place_without_a_tokenizer_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(LoadgenError) as fault:
        from_tokenizer(tmp_path / name)
    assert str(tmp_path) in one_line(fault)


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(LoadgenError) as fault:
        from_tokenizer(tmp_path)
    assert "cannot be read as a tokenizer" in one_line(fault)


def test_a_template_that_refuses_is_told(folder: Path) -> None:
    with pytest.raises(LoadgenError) as fault:
        from_tokenizer(folder, "{{ raise_exception('only with tools') }}")
    assert "only with tools" in one_line(fault)
