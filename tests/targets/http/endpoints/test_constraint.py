"""Which field of the body constrains an answer to labels, by the server's version and by trial."""

import anyio
import pytest

from loadgen.targets.http.endpoints.constraint import (
    Found,
    Refused,
    fields_for,
    fields_of_version,
    find_constraint,
    without_unwanted,
)


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        ("0.32.0", ("structured_outputs",)),
        ("0.11.0", ("structured_outputs",)),
        ("v1.0.1rc2", ("structured_outputs",)),
        ("0.10.2", ("guided_choice",)),
        ("0.6.3.post1", ("guided_choice",)),
        ("0.1.dev1+g0123abc", ("structured_outputs", "guided_choice")),  # built without its tags
        ("dev", ("structured_outputs", "guided_choice")),
        (None, ("structured_outputs", "guided_choice")),
    ],
)
def test_the_version_decides_which_field_constrains(version, fields):
    assert fields_of_version(version) == fields


def test_labels_stand_under_each_field_as_its_servers_read_them():
    assert fields_for("structured_outputs", ("a", "b")) == {"structured_outputs": {"choice": ["a", "b"]}}
    assert fields_for("guided_choice", ("a", "b")) == {"guided_choice": ["a", "b"]}


def test_what_would_go_on_after_the_label_or_constrain_otherwise_is_taken_out():
    fields = {"ignore_eos": True, "min_tokens": 3, "structured_outputs": {}, "guided_choice": [], "seed": 1}
    assert without_unwanted(fields) == {"seed": 1}


def found(version: str | None, *answers: str | Refused) -> tuple[Found, list[str]]:
    """What the trials find out, and which fields were tried."""
    said, tried = iter(answers), []

    async def say(fields: dict) -> str | Refused:
        tried.extend(fields)
        return next(said)

    return anyio.run(find_constraint, version, say), tried


def test_the_first_field_that_constrains_is_taken():
    assert found(None, "qzxj") == (Found("structured_outputs"), ["structured_outputs"])
    assert found(None, "hello", " qzxj\n") == (Found("guided_choice"), ["structured_outputs", "guided_choice"])


def test_where_none_constrains_each_is_told_with_its_reason():
    reason = (
        "the server answers 'hello' where structured_outputs allows 'qzxj' only; "
        "the server refuses guided_choice: what is that?"
    )
    assert found(None, "hello", Refused("what is that?"))[0] == Found(None, reason)
