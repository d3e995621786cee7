"""The simulated tokenizer: reversible, and shaped like byte-level BPE."""

from hypothesis import given
from hypothesis import strategies as st

from loadgen.sim.model import tokenizer


@given(st.text())
def test_any_text_comes_back_and_is_as_long_as_counted(text):
    text = text.encode(errors="replace").decode()  # lone surrogates are no text
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) == tokenizer.count(text)
    assert all(0 <= token < 2**53 for token in ids)


@given(st.lists(st.integers(0, 2**53 - 1)))
def test_any_ids_have_a_text(ids):
    assert isinstance(tokenizer.decode(ids), str)
    assert len(tokenizer.token_strings(ids)) == len(ids)


def test_a_words_first_piece_carries_its_space_and_the_others_do_not():
    ids = tokenizer.encode("The cat interpretation\né")
    assert tokenizer.token_strings(ids) == ["The", "Ġcat", "Ġinterp", "retati", "on", "Ċ", "Ã©"]


def test_the_chat_template_costs_a_few_tokens_a_message():
    messages = [("system", "be brief"), ("user", "hi")]
    ids = tokenizer.encode_chat(messages)
    assert tokenizer.decode(ids) == (
        "<|im_start|>system\nbe brief<|im_end|><|im_start|>user\nhi<|im_end|><|im_start|>assistant\n"
    )
    # 4 + 2 words, 4 + 1 word, and 4 for the prompt to the assistant, whose name is two pieces.
    assert len(ids) == tokenizer.count_chat(messages) == 15
    assert tokenizer.count_chat(messages, generation_prompt=False) == 11


@given(st.lists(st.tuples(st.text("ab \n"), st.text("ab \n"))), st.integers(0, 1), st.integers(0, 1), st.booleans())
def test_a_rendered_chat_is_the_text_of_its_tokens(messages, images, audio, prompted):
    settings = {"images": images, "audio": audio, "generation_prompt": prompted}
    assert tokenizer.render_chat(messages, **settings) == tokenizer.decode(tokenizer.encode_chat(messages, **settings))


def test_each_image_and_each_sound_of_a_chat_costs_a_fixed_number_of_tokens():
    messages = [("user", "hi")]
    ids = tokenizer.encode_chat(messages, images=2, audio=1)
    # 4 + 1 word, and 4 for the prompt to the assistant.
    assert len(ids) == tokenizer.count_chat(messages, images=2, audio=1) == 2 * 576 + 125 + 9
    text = tokenizer.decode(ids)
    assert (text.count("<|image|>"), text.count("<|audio|>")) == (2 * 576, 125)
    assert text.endswith("<|im_start|>user\nhi<|im_end|><|im_start|>assistant\n")
