"""Which GPUs each worker's engine sees: tables of profiles and machines, and slices that never overlap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ProfileError
from loadgen.profile import Concurrency, EngineTarget, Profile, SimTarget, Workers
from loadgen.units import NS_PER_SECOND, Duration
from loadgen.workers.placement import Placement, count_gpus, gpus_of_engine, placements, visible_gpus

VISIBLE = "CUDA_VISIBLE_DEVICES"
LOAD = Concurrency(concurrency=8, duration=Duration(NS_PER_SECOND))


def profile(gpus_per_worker=None, target=None, **engine_args) -> Profile:
    target = target or EngineTarget(model="tiny", engine_args=engine_args)
    return Profile(target=target, load=LOAD, workers=Workers(gpus_per_worker=gpus_per_worker))


def slices(placed: list[Placement]) -> list[str | None]:
    assert all(placement.engine for placement in placed)
    return [placement.environment.get(VISIBLE) for placement in placed]


@pytest.mark.parametrize(
    ("wanted", "engine_args", "processes", "environ", "gpus", "expected"),
    [
        # One worker sees what there is, unless it is told how many.
        (None, {}, 1, {}, 4, [None]),
        (None, {"tensor_parallel_size": 4}, 1, {}, 4, [None]),
        (None, {}, 1, {VISIBLE: "2,3"}, 4, [None]),
        (1, {}, 1, {}, 4, ["0"]),
        (2, {}, 1, {VISIBLE: "3,1"}, 4, ["3,1"]),
        # Several get slices in order.
        (None, {}, 2, {}, 2, ["0", "1"]),
        (None, {}, 2, {}, 8, ["0", "1"]),
        (2, {}, 2, {}, 4, ["0,1", "2,3"]),
        # 2 x 2 GPUs each.
        (None, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, 2, {}, 8, ["0,1,2,3", "4,5,6,7"]),
        (None, {"data_parallel_size": 3}, 2, {}, 6, ["0,1,2", "3,4,5"]),
        (1, {"tensor_parallel_size": 2}, 2, {}, 4, ["0", "1"]),
        # Of those that are visible, as they are named.
        (None, {}, 2, {VISIBLE: "5, 7"}, 8, ["5", "7"]),
        (None, {}, 2, {VISIBLE: "GPU-8f1c,MIG-22ab"}, 1, ["GPU-8f1c", "MIG-22ab"]),
        (1, {}, 2, {VISIBLE: "4,5,6"}, None, ["4", "5"]),
        # Where nobody can tell how many there are, by number.
        (2, {}, 2, {}, None, ["0,1", "2,3"]),
        # Without a GPU there is nothing to share out.
        (None, {}, 2, {}, 0, [None, None]),
        (None, {"tensor_parallel_size": 2}, 2, {}, 0, [None, None]),
        (None, {}, 2, {VISIBLE: ""}, 4, [None, None]),
        (None, {}, 2, {VISIBLE: "-1"}, 4, [None, None]),
    ],
)
def test_each_engine_gets_its_slice(wanted, engine_args, processes, environ, gpus, expected):
    assert slices(placements(profile(wanted, **engine_args), processes, environ, gpus)) == expected


@pytest.mark.parametrize(
    ("wanted", "engine_args", "processes", "environ", "gpus", "fault"),
    [
        (2, {}, 2, {}, 3, "workers.processes = 2 with workers.gpus_per_worker = 2 needs 4 GPUs, and 3 are visible"),
        (1, {}, 1, {}, 0, "workers.processes = 1 with workers.gpus_per_worker = 1 needs 1 GPU, and 0 are visible"),
        (
            None,
            {"tensor_parallel_size": 2},
            2,
            {VISIBLE: "0"},
            4,
            "workers.processes = 2 with workers.gpus_per_worker = 2 (as engine_args ask) needs 4 GPUs, "
            "and 1 is visible (CUDA_VISIBLE_DEVICES=0)",
        ),
        (
            1,
            {},
            2,
            {VISIBLE: ""},
            4,
            "workers.processes = 2 with workers.gpus_per_worker = 1 needs 2 GPUs, "
            "and 0 are visible (CUDA_VISIBLE_DEVICES=)",
        ),
    ],
)
def test_too_few_gpus_are_refused_in_a_line_that_says_how_many(wanted, engine_args, processes, environ, gpus, fault):
    with pytest.raises(ProfileError) as refused:
        placements(profile(wanted, **engine_args), processes, environ, gpus)
    assert refused.value.faults == [fault]


def test_a_target_without_an_engine_is_placed_anywhere():
    assert placements(profile(target=SimTarget()), 2, {VISIBLE: "0"}, 1) == [Placement({}, False)] * 2


def test_gpus_for_a_target_that_has_none_are_refused():
    with pytest.raises(ProfileError, match=r"workers\.gpus_per_worker: only target\.kind = \"engine\""):
        placements(profile(1, target=SimTarget()), 2, {}, 4)


@given(
    names=st.lists(st.from_regex(r"\A(GPU-)?[0-9a-f]{1,4}\Z"), unique=True, max_size=12),
    processes=st.integers(1, 4),
    each=st.integers(1, 4),
)
def test_slices_are_whole_disjoint_and_in_order_or_refused(names, processes, each):
    environ = {VISIBLE: ",".join(names)}
    try:
        placed = placements(profile(each), processes, environ, None)
    except ProfileError:
        assert processes * each > len(names)
        return
    given_out = [placement.environment[VISIBLE].split(",") for placement in placed]
    assert [len(names) for names in given_out] == [each] * processes
    assert [name for slice_ in given_out for name in slice_] == names[: processes * each]


@pytest.mark.parametrize(
    ("environ", "gpus", "expected"),
    [
        ({}, 2, ["0", "1"]),
        ({}, 0, []),
        ({}, None, None),
        ({VISIBLE: "1"}, None, ["1"]),
        ({VISIBLE: ""}, 2, []),
        ({VISIBLE: "0,-1,1"}, 2, ["0"]),  # CUDA stops at the first that is none
    ],
)
def test_what_is_visible_is_what_cuda_would_see(environ, gpus, expected):
    assert visible_gpus(environ, gpus) == expected


@pytest.mark.parametrize(
    ("engine_args", "expected"),
    [
        ({}, 1),
        ({"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "data_parallel_size": 2}, 16),
        ({"tensor_parallel_size": "4"}, 1),  # no count: vLLM says so
        ({"tensor_parallel_size": 0}, 1),
    ],
)
def test_an_engine_takes_the_product_of_its_parallel_sizes(engine_args, expected):
    assert gpus_of_engine(engine_args) == expected


@pytest.mark.parametrize(
    ("drivers", "devices", "expected"),
    [
        ([], [], 0),
        (["0000:01:00.0", "0000:02:00.0"], ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], 2),
        (["0000:01:00.0", "0000:02:00.0"], ["nvidia1", "nvidiactl"], 1),  # a container with one of two
        ([], ["nvidia0"], 1),
        (["0000:01:00.0"], ["null"], 1),
        ([], ["dxg"], None),  # WSL
    ],
)
def test_gpus_are_counted_by_the_kernels_files(drivers, devices, expected, tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "dev").mkdir()
    for name in drivers:
        (tmp_path / "proc/driver/nvidia/gpus" / name).mkdir(parents=True)
    for name in devices:
        (tmp_path / "dev" / name).touch()
    assert count_gpus(tmp_path) == expected


def test_gpus_are_not_counted_where_there_is_no_such_place_to_look(tmp_path):
    assert count_gpus(tmp_path) is None
