"""Texts of tokens from a vocabulary's strings."""

from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.pieces import texts_of
from loadgen.sim.model import tokenizer


@given(st.text())
def test_the_simulator_s_byte_level_strings_are_read_back_token_by_token(text):
    ids = tokenizer.encode(text)
    assert texts_of(tokenizer.token_strings(ids), text) == tuple(tokenizer.decode([token]) for token in ids)


def test_a_special_token_before_the_text_keeps_its_name():
    assert texts_of(["<|bos|>", "hello", "Ġworld"], "hello world") == ("<|bos|>", "hello", " world")


def test_a_token_that_is_part_of_a_character_has_its_place_taken():
    # é is two bytes, C3 and A9, which a byte-level vocabulary writes as the characters of these numbers.
    assert texts_of(["caf", "Ã", "©"], "café") == ("caf", "�", "�")


def test_strings_of_sentencepiece_are_read_with_the_space_that_it_puts_first():
    assert texts_of(["<s>", "▁hello", "▁wor", "ld", "<0x0A>"], "hello world\n") == ("<s>", " hello", " wor", "ld", "\n")


def test_strings_that_are_not_understood_stay_as_they_are():
    assert texts_of(["##lo", "hel"], "hello") == ("##lo", "hel")
