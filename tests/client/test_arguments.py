"""What is given to the client in the wrong type is refused by name, before anything is asked."""

from types import MappingProxyType
from typing import Any

import pytest

from loadgen.client import ChatMessage, VLLMClient
from loadgen.client.arguments import bare_key, check_arguments

NOWHERE = "http://127.0.0.1:1"
LABELS = ["yes", "no"]
WRONG: list[tuple[str, str, dict[str, Any]]] = [
    ("model", "VLLMClient", {"model": None}),
    ("base_url", "VLLMClient", {"base_url": b"http://host"}),
    ("api_key", "VLLMClient", {"api_key": 5}),
    ("timeout", "VLLMClient", {"timeout": "5"}),
    ("timeout", "VLLMClient", {"timeout": None}),
    ("max_tokens", "VLLMClient", {"max_tokens": 1.5}),
    ("max_tokens", "VLLMClient", {"max_tokens": None}),
    ("extra_body", "VLLMClient", {"extra_body": [1]}),
    ("messages", "chat", {"messages": 5}),
    ("messages", "chat", {"messages": {"role": "user", "content": "hi"}}),
    (r"messages\[1\]", "chat", {"messages": [ChatMessage("user", "hi"), "hi"]}),
    (r"messages\[0\]", "chat", {"messages": [ChatMessage("user", 5)]}),
    (r"messages\[0\]", "chat", {"messages": [ChatMessage("user", ("hi",))]}),
    (r"messages\[0\]", "chat", {"messages": [{"role": 5, "content": "hi"}]}),
    ("constrain_labels", "chat", {"messages": "hi", "constrain_labels": 5}),
    ("constrain_labels", "chat", {"messages": "hi", "constrain_labels": ["yes", 5]}),
    ("label_logprobs", "chat", {"messages": "hi", "constrain_labels": LABELS, "label_logprobs": "exactly"}),
    ("logprobs", "chat", {"messages": "hi", "logprobs": 5}),
    ("top_logprobs", "chat", {"messages": "hi", "top_logprobs": "5"}),
    ("temperature", "chat", {"messages": "hi", "temperature": "hot"}),
    ("max_tokens", "chat", {"messages": "hi", "max_tokens": True}),
    ("extra_body", "chat", {"messages": "hi", "extra_body": "seed"}),
    ("prompt", "score", {"prompt": 5, "completion": "a"}),
    ("messages", "score", {"messages": 5, "completion": "a"}),
    ("completion", "score", {"prompt": "a", "completion": 5}),
    ("top_logprobs", "score", {"prompt": "a", "completion": "b", "top_logprobs": None}),
    ("extra_body", "score", {"prompt": "a", "completion": "b", "extra_body": 5}),
    ("text", "tokenize", {"text": None}),
    ("context", "tokenize", {"text": "a", "context": 5}),
    ("add_special_tokens", "tokenize", {"text": "a", "add_special_tokens": "yes"}),
    ("ids", "detokenize", {"ids": "1 2"}),
    ("ids", "detokenize", {"ids": [1, "2"]}),
    ("texts", "embed", {"texts": 5}),
    ("texts", "embed", {"texts": ["a", None]}),
]


@pytest.mark.parametrize(("name", "call", "given"), WRONG)
def test_an_argument_of_another_type_is_refused_by_its_name(name: str, call: str, given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{name}[: ]"):
        VLLMClient(**given) if call == "VLLMClient" else getattr(VLLMClient(base_url=NOWHERE), call)(**given)


def test_of_a_list_the_item_is_named() -> None:
    with pytest.raises(ValueError, match=r"^ids: must be a list of token ids; ids\[1\] is none$"):
        check_arguments(ids=[1, "2"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout", 5),
        ("temperature", 0),
        ("ids", range(3)),
        ("ids", (1, 2)),
        ("constrain_labels", ("yes", "no")),
        ("texts", ("a",)),
        ("extra_body", MappingProxyType({"seed": 1})),
        ("label_logprobs", None),
    ],
)
def test_what_is_as_good_as_the_type_is_taken(name: str, value: Any) -> None:
    check_arguments(**{name: value})


@pytest.mark.parametrize("key", ["sk-key", "sk-key\n", " sk-key\r\n", "\tsk-key "])
def test_the_space_around_a_key_is_cut_off(key: str) -> None:
    assert bare_key(key) == "sk-key"


@pytest.mark.parametrize("key", [None, "", " \n"])
def test_a_key_of_nothing_is_none(key: str | None) -> None:
    assert bare_key(key) is None


@pytest.mark.parametrize("key", ["sk\nkey", "sk\0key", "schlüssel"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ValueError, match=r"^api_key: must be printable ASCII, in one line$"):
        VLLMClient(base_url=NOWHERE, api_key=key)
