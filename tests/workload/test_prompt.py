"""A conversation becomes messages, and messages become one prompt: in each format, with each mix of media."""

from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jinja2 import TemplateError
from jinja2.exceptions import SecurityError

from loadgen.errors import ExitCode, LoadgenError
from loadgen.workload.prompt import (
    DEFAULT_TEMPLATE,
    PLAIN,
    Format,
    PromptError,
    compile_template,
    compose,
    prompt_format,
    render,
)
from loadgen.workload.request import Audio, Image, Message, Text, Video, text_of

# A model's chat template that knows blocks and places markers of its own.
CHAT = """\
{%- for m in messages %}
<|{{ m.role }}|>
{%- if m.content is string %}{{ m.content }}{% else %}
{%- for block in m.content %}
{%- if block.type == 'text' %}{{ block.text }}{% elif block.type == 'image' %}<img/>{% else %}<snd/>{% endif %}
{%- endfor %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
TEXT_ONLY = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
EARLIER = (Message("user", "who?"), Message("assistant", "me"))


def chat(turns: list[dict]) -> str:
    """What a tokenizer with that chat template writes."""
    return compile_template(CHAT).render(messages=turns, add_generation_prompt=True)


def written(messages, form=PLAIN, **settings):
    settings = {"chat_template": chat} | settings
    return render(messages, form if isinstance(form, Format) else prompt_format(form), **settings)


# --- composed ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"texts": ["hello"]}, (Message("user", "hello"),)),
        ({"texts": ["hello ", "there", "", "!"]}, (Message("user", "hello there!"),)),
        ({"texts": ["hello", " \n"]}, (Message("user", "hello"),)),
        (
            {"prefix": ["be", "", "brief"], "texts": ["hello"]},
            (Message("system", "be brief"), Message("user", "hello")),
        ),
        ({"images": ["i"]}, (Message("user", (Image("i"),)),)),
        ({"images": [None, "i", ""], "audio": [None]}, (Message("user", (Image("i"),)),)),
        ({"audio": ["a"], "texts": ["hello"]}, (Message("user", (Audio("a"), Text("hello"))),)),
        ({"images": ["i"], "videos": [None, ""]}, (Message("user", (Image("i"),)),)),
        (
            {"images": ["i", "j", "k"], "audio": ["a"], "texts": ["s", "t"]},
            (Message("user", (Image("i"), Audio("a"), Text("s"), Image("j"), Text("t"), Image("k"))),),
        ),
        ({"texts": ["and?"], "history": EARLIER}, (*EARLIER, Message("user", "and?"))),
        (
            {"prefix": ["be brief"], "texts": ["and?"], "history": EARLIER},
            (Message("system", "be brief"), *EARLIER, Message("user", "and?")),
        ),
    ],
)
def test_texts_and_media_become_messages(said, expected):
    assert compose(**said) == expected


def test_system_messages_of_the_history_join_the_prefix_and_one_that_says_the_same_does_not_say_it_twice():
    history = (Message("system", "be brief"), *EARLIER, Message("system", "be kind"))
    system, *others = compose(prefix=["be", "brief"], texts=["and?"], history=history)
    assert system == Message("system", "be brief be kind")
    assert others == [*EARLIER, Message("user", "and?")]


def test_a_system_message_with_an_image_stays_where_it_is():
    history = (*EARLIER, Message("system", (Text("look"), Image("i"))))
    assert compose(texts=["and?"], history=history) == (*history, Message("user", "and?"))


@pytest.mark.parametrize("said", [{}, {"texts": ["", " "]}, {"images": [None]}, {"prefix": ["be brief"]}])
def test_a_request_with_neither_text_nor_media_is_refused(said):
    with pytest.raises(PromptError, match="nothing to say"):
        compose(history=EARLIER, **said)


@pytest.mark.parametrize(("videos", "words"), [(["v"], "has 1 video$"), (["v", b"w"], "has 2 videos$")])
def test_video_is_refused_with_its_count(videos, words):
    with pytest.raises(PromptError, match=f"video is not supported, and the request {words}"):
        compose(texts=["hello"], videos=videos)


NUMBERED = st.integers(0, 4)


@given(NUMBERED, NUMBERED, NUMBERED)
def test_rounds_hold_every_item_once_and_in_order(images, audio, texts):
    said = {"images": [f"i{n}" for n in range(images)], "audio": [f"a{n}" for n in range(audio)]}
    words = [f"t{n}" for n in range(texts)]
    assume(images + audio > 0)
    (message,) = compose(texts=words, **said)
    assert [part.source for part in message.content if isinstance(part, Image)] == said["images"]
    assert [part.source for part in message.content if isinstance(part, Audio)] == said["audio"]
    assert [part.text for part in message.content if isinstance(part, Text)] == words
    # A round is over before the next begins: the n-th of a kind comes before the n+1-th of any.
    rounds = [int((part.text if isinstance(part, Text) else part.source)[1:]) for part in message.content]
    assert rounds == sorted(rounds)


TEXTS = st.lists(st.text(max_size=5), max_size=4)


@given(TEXTS, TEXTS, TEXTS, st.booleans())
def test_no_text_that_says_something_is_lost(prefix, texts, turns, with_image):
    history = [Message(("system", "user", "assistant")[i % 3], text) for i, text in enumerate(turns)]
    images = ["i"] if with_image else []
    assume(images or any(text.strip() for text in texts))
    messages = compose(prefix=prefix, texts=texts, images=images, history=history)
    everything = [text_of(message) for message in messages]
    for text in (*prefix, *texts, *turns):
        assert not text.strip() or any(text in said for said in everything)
    assert sum(message.role == "system" for message in messages) <= 1


# --- the format -------------------------------------------------------------------------------------------------------


def test_a_template_may_be_inline():
    prompt = written(compose(prefix=["be brief"], texts=["hello"]), TEXT_ONLY)
    assert (prompt.text, prompt.special) == ("system: be brief\nuser: hello\n", True)


def test_a_template_may_be_a_file_which_is_read_once(tmp_path: Path):
    file = tmp_path / "chat.jinja"
    file.write_text(TEXT_ONLY, encoding="utf-8")
    form = prompt_format(str(file))
    file.unlink()
    assert [written(compose(texts=[text]), form).text for text in ("a", "b")] == ["user: a\n", "user: b\n"]


def test_a_template_is_compiled_with_the_format_and_not_again(monkeypatch: pytest.MonkeyPatch):
    form = prompt_format(TEXT_ONLY)
    # Without the compiler a second compilation could not go unseen.
    monkeypatch.setattr("jinja2.environment.Environment.compile", None)
    assert written(compose(texts=["hello"]), form).text == "user: hello\n"


def test_a_long_inline_template_is_no_path():
    # 20,000 characters are more than any path can have.
    prompt = written(compose(texts=["hello"]), "{{ messages[0].content }}" + "x" * 20_000)
    assert prompt.text.startswith("hellox")


def test_own_templates_know_the_begin_and_the_end_of_a_text():
    form = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{% if add_generation_prompt %}>{% endif %}"
    assert written(compose(texts=["hello"]), form, bos_token="<s>", eos_token="</s>").text == "<s>hello</s>>"


def refusal(value: str) -> str:
    with pytest.raises(LoadgenError) as fault:
        prompt_format(value)
    words = str(fault.value)
    assert fault.value.exit_code == ExitCode.USAGE
    assert "\n" not in words
    assert words.startswith("target.request_format = ")
    assert "must be default-template, plain, a Jinja2 template" in words
    return words


@pytest.mark.parametrize("value", ["chatty", "", "no/such/file.jinja", "Plain", "a\nb", "a\0b", "x" * 20_000])
def test_a_word_that_is_no_format_is_refused(value):
    assert "there is no such format, nor such a file" in refusal(value)


def test_a_long_value_is_shown_short():
    assert len(refusal("x" * 20_000)) < 400


def test_a_folder_is_no_template(tmp_path: Path):
    assert "nor such a file" in refusal(str(tmp_path))


def test_a_file_without_template_syntax_is_refused(tmp_path: Path):
    file = tmp_path / "t.txt"
    file.write_text("just words { }")
    assert "the file holds no template" in refusal(str(file))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path):
    file = tmp_path / "t.bin"
    file.write_bytes(b"\xff\xfe{{")
    assert "the file is no UTF-8 text" in refusal(str(file))


@pytest.mark.parametrize(
    "source", ["{{ messages", "{% for m in messages %}", "{% nonsense %}", "a\n{% if %}{% endif %}"]
)
def test_a_template_that_does_not_parse_is_refused(tmp_path: Path, source: str):
    file = tmp_path / "t.jinja"
    file.write_text(source)
    for value in (source, str(file)):
        assert "the template does not parse: " in refusal(value)
        assert f"(line {source.count(chr(10)) + 1})" in refusal(value)


# --- rendered ---------------------------------------------------------------------------------------------------------

BE = {"prefix": ["be", "brief"]}
MIXED = {"images": ["i", "j"], "audio": ["a"]}


@pytest.mark.parametrize(
    ("said", "templated", "plain"),
    [
        ({"texts": ["hello"]}, "<|user|>hello", "hello"),
        ({"texts": ["hel", "lo"]}, "<|user|>hello", "hello"),
        (BE | {"texts": ["hello"]}, "<|system|>be brief<|user|>hello", "be brief hello"),
        ({"images": ["i"], "texts": ["what?"]}, "<|user|><img/>what?", "<image>\nwhat?"),
        ({"images": ["i", "j"], "texts": ["what?"]}, "<|user|><img/>what?<img/>", "<image>\n<image>\nwhat?"),
        ({"images": ["i"], "texts": ["a", "b"]}, "<|user|><img/>ab", "<image>\nab"),
        ({"audio": ["a"], "texts": ["what?"]}, "<|user|><snd/>what?", "<|audio|>\nwhat?"),
        ({"audio": ["a", "b"], "texts": ["x"]}, "<|user|><snd/>x<snd/>", "<|audio|>\n<|audio|>\nx"),
        (MIXED | {"texts": ["x"]}, "<|user|><img/><snd/>x<img/>", "<image>\n<|audio|>\n<image>\nx"),
        (BE | {"images": ["i"]}, "<|system|>be brief<|user|><img/>", "be brief <image>\n"),
        (BE | {"audio": ["a"]}, "<|system|>be brief<|user|><snd/>", "be brief <|audio|>\n"),
        (
            BE | {"history": EARLIER, "images": ["i"], "texts": ["and?"]},
            "<|system|>be brief<|user|>who?<|assistant|>me<|user|><img/>and?",
            "be brief who? me <image>\nand?",
        ),
    ],
)
def test_a_request_reads_so_in_a_template_and_so_in_plain(said, templated, plain):
    messages = compose(**said)
    for form, text, special in ((DEFAULT_TEMPLATE, templated + "<|assistant|>", True), (PLAIN, plain, False)):
        prompt = written(messages, form)
        assert (prompt.text, prompt.special) == (text, special)
        assert prompt.images == tuple(said.get("images", ()))
        assert prompt.audio == tuple(said.get("audio", ()))
    assert written(messages, CHAT) == written(messages, DEFAULT_TEMPLATE)


@pytest.mark.parametrize("form", [DEFAULT_TEMPLATE, PLAIN, CHAT])
@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"images": ["i"]}, "<image>\n"),
        ({"audio": ["a"]}, "<|audio|>\n"),
        ({"images": ["i", "j"], "audio": ["a"]}, "<image>\n<|audio|>\n<image>\n"),
    ],
)
def test_media_alone_are_their_placeholders_in_every_format(form, said, text):
    # Not even a chat template is needed.
    prompt = written(compose(**said), form, chat_template=None)
    assert (prompt.text, prompt.special) == (text, False)


def test_placeholders_can_be_set():
    prompt = written(compose(texts=["x"], **MIXED), image_placeholder="[IMG]", audio_placeholder="[SND]")
    assert prompt.text == "[IMG]\n[SND]\n[IMG]\nx"


def test_without_a_user_message_the_placeholders_stand_in_the_last_message():
    messages = (Message("system", (Image("i"), Text("look"))), Message("assistant", "I do"))
    prompt = written(messages)
    assert (prompt.text, prompt.images) == ("look <image>\nI do", ("i",))


def test_placeholders_of_earlier_turns_stand_with_the_others_in_the_order_of_the_items():
    history = (Message("user", (Image("i"), Text("who?"))), Message("assistant", "me"))
    prompt = written(compose(images=["j"], audio=["a"], texts=["and?"], history=history))
    assert prompt.text == "who? me <image>\n<image>\n<|audio|>\nand?"
    assert (prompt.images, prompt.audio) == (("i", "j"), ("a",))


def test_texts_alone_reach_a_template_as_one_text():
    messages = (Message("user", (Text("hel"), Text("lo"))),)
    assert written(messages, TEXT_ONLY).text == "user: hello\n"


@given(NUMBERED, NUMBERED, st.sampled_from([DEFAULT_TEMPLATE, PLAIN]), st.booleans())
def test_there_is_a_mark_for_each_item(images, audio, form, with_text):
    assume(images or audio or with_text)
    messages = compose(texts=["x"] if with_text else [], images=["i"] * images, audio=["a"] * audio)
    prompt = written(messages, form)
    marks = ("<img/>", "<snd/>") if prompt.special else ("<image>", "<|audio|>")
    assert tuple(map(prompt.text.count, marks)) == (images, audio) == (len(prompt.images), len(prompt.audio))


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [DEFAULT_TEMPLATE, PLAIN, CHAT])
def test_a_video_among_the_parts_is_refused_in_every_format(form):
    with pytest.raises(PromptError, match=r"video is not supported, and the request has 1 video$"):
        written((Message("user", (Text("look"), Video("v"))),), form)


@pytest.mark.parametrize("messages", [(), (Message("user", ""),), (Message("user", (Text(" "),)),)])
def test_messages_that_say_nothing_are_refused(messages):
    with pytest.raises(PromptError, match="nothing to say"):
        written(messages)


def test_a_model_without_a_chat_template_is_refused_with_the_way_out():
    with pytest.raises(PromptError, match=r'has no chat template: set target\.request_format to "plain"'):
        written(compose(texts=["hello"]), DEFAULT_TEMPLATE, chat_template=None)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('only\nwith tools') }}", "fails: only with tools"),
        ("{{ 1 / 0 }}", "fails: division by zero"),
        ("{{ messages.clear() }}", "fails: access to attribute 'clear'"),  # the sandbox changes nothing
        ("{% if false %}x{% endif %}", "writes an empty prompt"),
    ],
)
def test_a_template_that_fails_fails_the_request_with_its_reason(template, words):
    messages = compose(texts=["hello"])
    with pytest.raises(PromptError, match="the template of target.request_format " + words) as own:
        written(messages, template)
    compiled = compile_template(template)
    with pytest.raises(PromptError, match="the model's chat template " + words):
        written(messages, DEFAULT_TEMPLATE, chat_template=lambda turns: compiled.render(messages=turns))
    assert "\n" not in str(own.value)


@pytest.mark.parametrize("template", [TEXT_ONLY, "{% for m in messages %}{{ m.content | trim }}{% endfor %}"])
def test_a_template_that_knows_text_alone_is_refused_for_media(template):
    with pytest.raises(PromptError, match="has no place for images or audio"):
        written(compose(images=["i"], texts=["what?"]), template)


# --- templates: what those of models use, and nothing that reaches out of the sandbox ---------------------------------


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for n in [1, 2, 3] %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}", "1"),
        ("{{ {'a': '<é & more>'} | tojson }}", '{"a": "<é & more>"}'),  # nothing escaped for HTML
        ("{{ {'a': 1} | tojson(indent=1) }}", '{\n "a": 1\n}'),
        ("{% if true %}\n  {% if true %}\nx\n  {% endif %}\n{% endif %}\n", "x\n"),  # blocks leave no space behind
        ("{{ strftime_now('%Y') in years }}", "True"),
    ],
)
def test_a_template_may_use_what_chat_templates_use(source, text):
    now = datetime.now().year
    years = [str(now), str(now + 1)]  # the second where the year ends in between
    assert compile_template(source).render(years=years) == text


def test_a_template_can_refuse():
    with pytest.raises(TemplateError, match="roles must alternate"):
        compile_template("{{ raise_exception('roles must alternate') }}").render()


def test_a_template_reaches_no_internals():
    with pytest.raises(SecurityError):
        compile_template("{{ ().__class__.__base__.__subclasses__() }}").render()
