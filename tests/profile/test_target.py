import pytest

from loadgen.profile import EngineTarget
from tests.profile.reading import ENGINE, HTTP, SMALL, fault, load


@pytest.mark.parametrize(
    "url", ["h:8000", "http://", "http://h:port", "http://h:0", "http://[::1", "http://h h", "ftp://h"]
)
def test_a_url_that_is_no_server_is_refused(url: str) -> None:
    expected = f'target: url = "{url}": must be http://HOST:PORT or https://HOST:PORT, with or without a path'
    assert fault(SMALL, target=url) == expected


def test_a_url_with_a_query_is_refused_and_not_shown() -> None:
    assert fault(SMALL, target="http://h?key=s3cret") == "target: url must have no ? or #"


@pytest.mark.parametrize("key", ["timeout", "connect_timeout", "preflight_timeout"])
def test_a_timeout_of_0_is_refused(key: str) -> None:
    assert fault(HTTP + SMALL, sets=(f"target.{key}=0s",)) == f"target: {key} must be longer than 0"


@pytest.mark.parametrize("key", ["timeout", "start_timeout"])
def test_a_timeout_of_0_is_refused_for_an_engine(key: str) -> None:
    assert fault(ENGINE + SMALL, sets=(f"target.{key}=0s",)) == f"target: {key} must be longer than 0"


@pytest.mark.parametrize("model", ["", "  "])
def test_an_empty_model_of_an_engine_is_refused(model: str) -> None:
    expected = "target: model is empty: must be a folder, or a name on the Hugging Face hub"
    assert fault(ENGINE + SMALL, model=model) == expected


def test_another_model_among_the_arguments_of_an_engine_is_refused() -> None:
    told = fault(ENGINE + SMALL, sets=("target.engine_args.model=n",))
    assert told == 'target: engine_args.model = "n" is not target.model = "m"'


def test_the_same_model_among_the_arguments_of_an_engine_does_no_harm() -> None:
    target = load(ENGINE + SMALL, sets=("target.engine_args.model=m",)).target
    assert target == EngineTarget(model="m", engine_args={"model": "m"})
