import pytest

from tests.profile.reading import ENGINE, SMALL, fault


@pytest.mark.parametrize("kind", ["tokenize", "rerank", "responses"])
def test_a_model_in_a_worker_is_refused_what_only_a_server_does(kind: str) -> None:
    sets = (f"workload.kind={kind}",)
    engine = (
        f'workload.kind = "{kind}": an engine in a worker has chat, completion, choice, score, embed and transcribe'
    )
    assert fault(ENGINE + SMALL, sets=sets) == f"{engine}; a server has the rest"
    simulator = f'workload.kind = "{kind}": the simulator in a worker has chat and completion'
    assert fault(SMALL, sets=(*sets, "target.transport=in-process")) == f"{simulator}; a server has the rest"


@pytest.mark.parametrize(("kind", "runner"), [("chat", "pooling"), ("embed", "generate")])
def test_an_engine_is_refused_a_kind_that_its_runner_has_not(kind: str, runner: str) -> None:
    sets = (f"workload.kind={kind}", f"target.engine_args.runner={runner}")
    told = f'workload.kind = "{kind}": an engine of engine_args.runner = "{runner}" has none'
    assert fault(ENGINE + SMALL, sets=sets) == told
