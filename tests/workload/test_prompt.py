"""Messages become one prompt: in each format, with each mix of media."""

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
    prompt_format,
    render,
)
from loadgen.workload.request import Audio, Image, Message, Text, Video

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
BRIEF = Message("system", "be brief")
IMG, JPG = Image("i"), Image("j")
WAV, MP3 = Audio("a"), Audio("b")


def user(*parts: str | Image | Audio) -> Message:
    """A user message: one text as it is, all else as parts in order."""
    if len(parts) == 1 and isinstance(parts[0], str):
        return Message("user", parts[0])
    return Message("user", tuple(Text(part) if isinstance(part, str) else part for part in parts))


def by(template: str):
    """What a tokenizer writes by a template."""
    return lambda turns: compile_template(template).render(messages=turns, add_generation_prompt=True)


def written(messages, form=PLAIN, **settings):
    """The prompt; by the template of the format, the user's own or the model's, as a session has it."""
    read = prompt_format(form)
    return render(messages, read, **{"chat_template": by(read.template or CHAT)} | settings)


# --- the format -------------------------------------------------------------------------------------------------------


def test_a_template_may_be_inline():
    prompt = written((BRIEF, user("hello")), TEXT_ONLY)
    assert (prompt.text, prompt.special) == ("system: be brief\nuser: hello\n", True)


def test_a_template_may_be_a_file_which_is_read_once(tmp_path: Path):
    file = tmp_path / "chat.jinja"
    file.write_text(TEXT_ONLY, encoding="utf-8")
    form = prompt_format(str(file))
    file.unlink()
    assert form == Format("own", TEXT_ONLY)


def test_a_long_inline_template_is_no_path():
    # 20,000 characters are more than any path can have.
    template = "{{ messages[0].content }}" + "x" * 20_000
    assert prompt_format(template) == Format("own", template)


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


@pytest.mark.parametrize(
    ("messages", "templated", "plain"),
    [
        ((user("hello"),), "<|user|>hello", "hello"),
        ((user("hel", "lo"),), "<|user|>hello", "hello"),
        ((BRIEF, user("hello")), "<|system|>be brief<|user|>hello", "be brief hello"),
        ((user(IMG, "what?"),), "<|user|><img/>what?", "<image>\nwhat?"),
        ((user(IMG, "what?", JPG),), "<|user|><img/>what?<img/>", "<image>\n<image>\nwhat?"),
        ((user(IMG, "a", "b"),), "<|user|><img/>ab", "<image>\nab"),
        ((user(WAV, "what?"),), "<|user|><snd/>what?", "<|audio|>\nwhat?"),
        ((user(WAV, "x", MP3),), "<|user|><snd/>x<snd/>", "<|audio|>\n<|audio|>\nx"),
        ((user(IMG, WAV, "x", JPG),), "<|user|><img/><snd/>x<img/>", "<image>\n<|audio|>\n<image>\nx"),
        ((BRIEF, user(IMG)), "<|system|>be brief<|user|><img/>", "be brief <image>\n"),
        ((BRIEF, user(WAV)), "<|system|>be brief<|user|><snd/>", "be brief <|audio|>\n"),
        (
            (BRIEF, *EARLIER, user(IMG, "and?")),
            "<|system|>be brief<|user|>who?<|assistant|>me<|user|><img/>and?",
            "be brief who? me <image>\nand?",
        ),
    ],
)
def test_a_request_reads_so_in_a_template_and_so_in_plain(messages, templated, plain):
    parts = [part for message in messages if not isinstance(message.content, str) for part in message.content]
    for form, text, special in ((DEFAULT_TEMPLATE, templated + "<|assistant|>", True), (PLAIN, plain, False)):
        prompt = written(messages, form)
        assert (prompt.text, prompt.special) == (text, special)
        assert prompt.images == tuple(part.source for part in parts if isinstance(part, Image))
        assert prompt.audio == tuple(part.source for part in parts if isinstance(part, Audio))


@pytest.mark.parametrize("form", [DEFAULT_TEMPLATE, PLAIN, CHAT])
@pytest.mark.parametrize(
    ("media", "text"),
    [((IMG,), "<image>\n"), ((WAV,), "<|audio|>\n"), ((IMG, WAV, JPG), "<image>\n<|audio|>\n<image>\n")],
)
def test_media_alone_are_their_placeholders_in_every_format(form, media, text):
    # Not even a chat template is needed.
    prompt = written((user(*media),), form, chat_template=None)
    assert (prompt.text, prompt.special) == (text, False)


def test_placeholders_can_be_set():
    prompt = written((user(IMG, WAV, JPG, "x"),), image_placeholder="[IMG]", audio_placeholder="[SND]")
    assert prompt.text == "[IMG]\n[SND]\n[IMG]\nx"


def test_without_a_user_message_the_placeholders_stand_in_the_last_message():
    messages = (Message("system", (IMG, Text("look"))), Message("assistant", "I do"))
    prompt = written(messages)
    assert (prompt.text, prompt.images) == ("look <image>\nI do", ("i",))


def test_placeholders_of_earlier_turns_stand_with_the_others_in_the_order_of_the_items():
    prompt = written((user(IMG, "who?"), Message("assistant", "me"), user(JPG, WAV, "and?")))
    assert prompt.text == "who? me <image>\n<image>\n<|audio|>\nand?"
    assert (prompt.images, prompt.audio) == (("i", "j"), ("a",))


def test_texts_alone_reach_a_template_as_one_text():
    assert written((user("hel", "lo"),), TEXT_ONLY).text == "user: hello\n"


NUMBERED = st.integers(0, 4)


@given(NUMBERED, NUMBERED, st.sampled_from([DEFAULT_TEMPLATE, PLAIN]), st.booleans())
def test_there_is_a_mark_for_each_item(images, audio, form, with_text):
    assume(images or audio or with_text)
    prompt = written((user(*[IMG] * images, *[WAV] * audio, *["x"] * with_text),), form)
    marks = ("<img/>", "<snd/>") if prompt.special else ("<image>", "<|audio|>")
    assert tuple(map(prompt.text.count, marks)) == (images, audio) == (len(prompt.images), len(prompt.audio))


def test_a_tokenizer_that_writes_chats_in_code_gives_ids_which_are_the_prompt():
    prompt = written((user("hello"),), DEFAULT_TEMPLATE, chat_template=lambda turns: [1, 3, 22177])
    assert (prompt.text, prompt.special) == ([1, 3, 22177], True)


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
        written((user("hello"),), DEFAULT_TEMPLATE, chat_template=None)


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
    messages = (user("hello"),)
    with pytest.raises(PromptError, match="the template of target.request_format " + words) as own:
        written(messages, template)
    with pytest.raises(PromptError, match="the model's chat template " + words):
        written(messages, DEFAULT_TEMPLATE, chat_template=by(template))
    assert "\n" not in str(own.value)


@pytest.mark.parametrize(
    ("wrote", "words"),
    [([], "writes an empty prompt"), (None, "writes neither a text nor token ids"), ({"input_ids": [1]}, "neither")],
)
def test_what_a_tokenizer_writes_and_is_no_prompt_fails_the_request(wrote, words):
    with pytest.raises(PromptError, match="the model's chat template .*" + words):
        written((user("hello"),), DEFAULT_TEMPLATE, chat_template=lambda turns: wrote)


@pytest.mark.parametrize("template", [TEXT_ONLY, "{% for m in messages %}{{ m.content | trim }}{% endfor %}"])
def test_a_template_that_knows_text_alone_is_refused_for_media(template):
    with pytest.raises(PromptError, match="has no place for images or audio"):
        written((user(IMG, "what?"),), template)


# --- templates: what those of models use, and nothing that reaches out of the sandbox ---------------------------------


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for n in [1, 2, 3] %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}", "1"),
        ("{{ {'a': '<é & more>'} | tojson }}", '{"a": "<é & more>"}'),  # nothing escaped for HTML
        ("{{ {'a': 1} | tojson(indent=1) }}", '{\n "a": 1\n}'),
        ("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":2,"b":1}'),
        ("{% generation %}\nmine{% endgeneration %}", "mine"),
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
