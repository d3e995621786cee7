import pytest

from tests.profile.reading import SMALL, fault


@pytest.mark.parametrize("assignment", ['system="x"', "images.count=1", "audio.count=1"])
def test_a_system_message_and_media_are_for_chats_only(assignment: str) -> None:
    told = fault(SMALL, sets=("workload.kind=completion", f"workload.{assignment}"))
    name = assignment.partition("=")[0].partition(".")[0]
    assert told.startswith(f'workload: {name} needs kind = "chat" or "choice"')


CHOICE = ("kind=choice", 'labels=["a", "b"]')


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        (["kind=choice"], 'kind = "choice" needs labels, at least two, different and not empty'),
        (["kind=choice", 'labels=["a"]'], 'kind = "choice" needs labels, at least two, different and not empty'),
        (["kind=choice", 'labels=["a", " a"]'], 'kind = "choice" needs labels, at least two, different and not empty'),
        (["kind=choice", 'labels=["a", " "]'], 'kind = "choice" needs labels, at least two, different and not empty'),
        ([*CHOICE, "body.ignore_eos=true"], "body.ignore_eos: something would follow the label"),
        ([*CHOICE, "body.min_tokens=9"], "body.min_tokens: something would follow the label"),
        (["kind=embed", "body.stream=true"], 'body.stream: a request of kind = "embed" has a whole answer'),
        (['labels=["a", "b"]'], 'labels need kind = "choice"'),
        (["inputs=2"], 'inputs needs kind = "embed" or "rerank" or "pooling"'),
        (["kind=pooling", "dimensions=2"], 'dimensions needs kind = "embed"'),
        (
            ["kind=messages", "output_tokens=none"],
            'kind = "messages" needs output_tokens: its API has no answer without a maximum',
        ),
        (
            ["prompt_tokens=none"],
            'prompt_tokens = "none" needs images or audio: without a text there would be nothing to say',
        ),
        (["kind=transcribe"], 'kind = "transcribe" needs audio, one sound a request'),
        (["kind=transcribe", "audio.count=2"], 'kind = "transcribe" needs audio, one sound a request'),
        (["kind=responses", "images.count=1"], 'images needs kind = "chat" or "choice"'),
        (["kind=score"], 'kind = "score" needs prompt_format = "tokens": where the completion begins is then exact'),
        (
            ["kind=score", "prompt_format=tokens", "output_tokens=none"],
            'kind = "score" needs output_tokens, the length of the completion that is scored',
        ),
        (
            ["kind=tokenize", "prompt_format=tokens"],
            'prompt_format = "tokens" needs kind = "completion" or "score" or "embed"',
        ),
    ],
)  # fmt: skip
def test_what_a_kind_of_workload_needs_or_does_not_take_is_told(sets: list[str], told: str) -> None:
    assert fault(SMALL, sets=tuple(f"workload.{key}" for key in sets)) == f"workload: {told}"
