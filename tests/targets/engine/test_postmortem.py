"""What is told of an engine that died or did not start, from logs as vLLM writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.targets.engine.postmortem import LINES, epitaph, last_lines, likely_cause

MEMORY = "memory: lower gpu_memory_utilization, max_model_len or max_num_seqs in target.engine_args, or use more GPUs"
UNSUPPORTED = "an operation, data type or model architecture that this vLLM does not support on this device"
MODEL = "the model could not be loaded: check target.model"
KILLED = "it was killed from outside: by somebody, or by the system as memory ran out"

CORE = "(EngineCore pid=812) ERROR 03-14 15:09:26 [core.py:1150] "
MAIN = "(MainProcess pid=790) ERROR 03-14 15:09:27 [async_llm.py:906] "
INFO = "(MainProcess pid=790) INFO 03-14 15:09:20 [model.py:733] "

LONGEST = 2000
"""Characters of an epitaph: 900 of what happened, 900 of last words, and a cause of about a hundred."""


@pytest.fixture
def log(tmp_path):
    """Writes a log and gives its path."""

    def write(text: str | bytes):
        path = tmp_path / "worker-0.log"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def traceback(error: str, *, prefix: str = CORE, frame: str = "vllm/v1/engine/core.py") -> str:
    """An error as vLLM logs one: each line of its traceback behind the prefix."""
    lines = [
        "EngineCore failed to start.",
        "Traceback (most recent call last):",
        f'  File "/opt/lib/python3.11/site-packages/{frame}", line 402, in initialise',
        "    self.model_executor = executor_class(vllm_config)",
        "                          ^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        *error.splitlines(),
    ]
    return "".join(f"{prefix}{line}\n" for line in lines)


ENDING = (
    "(MainProcess pid=790) WARNING 03-14 15:09:26 [core_client.py:817] [shutdown] MPClient: engine core exited\n"
    "(MainProcess pid=790) INFO 03-14 15:09:26 [core_client.py:777] [shutdown] MPClient: complete\n"
    + traceback(
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the "
        "root cause.",
        prefix=MAIN,
    ).replace("EngineCore failed to start.", "AsyncLLM output_handler failed.")
)
"""What the process with the client of every engine says as its core is gone, whatever the core died of."""

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.14 GiB "
    "of which 1.20 GiB is free."
)
NO_ROOM = (
    "ValueError: To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (1.2 GiB). Try increasing `gpu_memory_utilization`."
)
NO_FREE = (
    "ValueError: Free memory on device cuda:0 (3.2/79.1 GiB) on startup is less than desired GPU memory utilization "
    "(0.9, 71.2 GiB)."
)
NO_LIBRARY = "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"


# --- causes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OOM, MEMORY),
        (NO_ROOM, MEMORY),
        (NO_FREE, MEMORY),
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.", MEMORY),
        ("RuntimeError: Failed to load model - not enough GPU memory.", MEMORY),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory", None),
        ("OSError: [Errno 12] Cannot allocate memory", MEMORY),
        ("NotImplementedError: Could not run '_C::rms_norm' with arguments from the 'CPU' backend.", UNSUPPORTED),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", UNSUPPORTED),
        ("ValueError: Model architectures ['FooForCausalLM'] are not supported for now.", UNSUPPORTED),
        ("ValueError: Bfloat16 is not supported by this device.", UNSUPPORTED),
        ("AssertionError: Torch not compiled with CUDA enabled", UNSUPPORTED),
        ("OSError: ./nowhere does not appear to have a file named config.json.", MODEL),
        ("huggingface_hub.errors.HFValidationError: Repo id must be in the form 'name'", MODEL),
        (
            "ValueError: The checkpoint has model type `foo` but Transformers does not recognize this architecture.",
            MODEL,
        ),
        ("RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM: size mismatch", MODEL),
        ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", MODEL),
    ],
    ids=lambda value: value[:40] if value else "none",
)
def test_an_error_suggests_its_cause(error, cause, log):
    assert likely_cause(error) == cause
    told = epitaph("the engine died: EngineCore, exit code 1", log(traceback(error) + ENDING))
    assert (f"; likely {cause}; " in told) if cause else ("likely" not in told)
    assert error[:100] in told


@pytest.mark.parametrize(
    "error",
    [
        NO_LIBRARY,
        "ValueError: not enough values to unpack (expected 2, got 1)",
        "TypeError: unsupported operand type(s) for +: 'int' and 'NoneType'",
        "AttributeError: 'NoneType' object has no attribute 'state_dict'",
        "KeyError: 'layers.0.weight'",
        "EOFError",
    ],
)
def test_an_error_that_suggests_nothing_gets_no_cause_but_its_words(error, log):
    told = epitaph("the engine died: EngineCore, exit code 1", log(traceback(error)))
    assert told == f"the engine died: EngineCore, exit code 1; its last words: EngineCore failed to start. | {error}"


def test_the_frames_of_a_traceback_suggest_nothing(log):
    # Weights were being read as a library was found missing.
    text = traceback(NO_LIBRARY, frame="safetensors/torch.py")
    assert "likely" not in epitaph("the engine died: EngineCore, exit code 1", log(text))


def test_lines_without_a_complaint_suggest_nothing(log):
    text = INFO + "Loading safetensors checkpoint\n" + INFO + "float8 is not supported here, using float16\n"
    assert "likely" not in epitaph("the engine died: EngineCore, exit code 1", log(text))


def test_what_is_known_of_the_end_goes_before_what_the_log_suggests(log):
    told = epitaph(f"the engine did not start: {OOM}", log(traceback("OSError: Error no file named model.bin")))
    assert f"; likely {MEMORY}; " in told
    assert MODEL not in told


def test_an_engine_that_was_killed_and_said_nothing_was_killed_from_outside(log):
    what = "the engine died: EngineCore, signal SIGKILL"
    assert epitaph(what, log("")) == f"{what}; likely {KILLED}"
    assert f"; likely {KILLED}; " in epitaph(what, log(INFO + "Using max model len 1024\n" + ENDING))
    # Whoever complains before it is killed has said more.
    assert f"; likely {MEMORY}; " in epitaph(what, log(traceback(OOM)))


# --- last words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "\n\n\n", "   \n\t\n", CORE + "\n", "\x1b[0m\n"], ids=repr)
def test_a_log_that_says_nothing_adds_nothing(text, log):
    assert last_lines(log(text)) == ""
    assert epitaph("the engine died: it ended its requests", log(text)) == "the engine died: it ended its requests"


def test_without_a_log_there_is_what_happened(tmp_path):
    for missing in (None, tmp_path / "none.log"):
        assert last_lines(missing) == ""
        assert epitaph("the engine is not well", missing) == "the engine is not well"


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        CORE,
        INFO,
        "(Worker_TP1 pid=9) WARNING 12-31 23:59:59 [gpu_worker.py:1] ",
        "ERROR 03-14 15:09:26 [core.py:1150] ",
        "\x1b[1;36m(EngineCore pid=812)\x1b[0;0m ERROR 03-14 15:09:26 [core.py:1150] ",
        "(EngineCore pid=812) ",
    ],
    ids=repr,
)
def test_a_line_is_told_without_what_vllm_puts_before_it(prefix, log):
    assert last_lines(log(f"{prefix}the words\n")) == "the words"


def test_colours_and_control_characters_are_left_out(log):
    assert last_lines(log("\x1b[31mred\x1b[0m and\x07 \x1b[?25lplain\x1b[K\n")) == "red and plain"


def test_of_a_traceback_the_error_is_told_and_no_frame(log):
    assert last_lines(log(traceback("KeyError: 'weight'"))) == "EngineCore failed to start. | KeyError: 'weight'"


def test_the_lines_are_the_last_ones_in_their_order(log):
    text = "".join(f"{INFO}line {number}\n" for number in range(20))
    assert last_lines(log(text)) == "line 15 | line 16 | line 17 | line 18 | line 19"
    assert last_lines(log(text), 2) == "line 18 | line 19"


def test_an_error_is_among_the_last_words_though_others_wrote_their_own_ends_after_it(log):
    after = "".join(f"{INFO}step {number} of the end\n" for number in range(LINES + 10))
    told = last_lines(log(traceback(OOM) + ENDING + after))
    assert told.startswith(OOM)
    assert told.count(" | ") == LINES - 1
    assert told.endswith(f"step {LINES + 9} of the end")


def test_of_many_errors_the_last_ones_are_told(log):
    text = "".join(traceback(f"ValueError: number {number}") for number in range(6))
    told = last_lines(log(text))
    # Three as errors, and one more as one of the last five lines.
    assert [f"number {number}" in told for number in range(6)] == [False] * 2 + [True] * 4


def test_what_several_processes_say_is_told_once_and_where_it_was_said_last(log):
    text = traceback("ValueError: broken") + INFO + "a word between\n" + traceback("ValueError: broken", prefix=MAIN)
    assert last_lines(log(text)) == "a word between | EngineCore failed to start. | ValueError: broken"


def test_progress_bars_are_passed_over(log):
    bars = "".join(
        f"\rLoading safetensors checkpoint shards:  {n}0% Completed | {n}/10 [00:01<00:09]" for n in range(10)
    )
    text = f"{INFO}Starting to load model tiny\n{bars}\nCapturing graphs: 12it [00:01, 9.81it/s]\n{INFO}Loaded\n"
    assert last_lines(log(text)) == "Starting to load model tiny | Loaded"


def test_what_a_line_wrote_over_itself_is_not_told(log):
    assert last_lines(log("Downloading one\rDownloading two\rDone\r\nthe end\r\n")) == "Done | the end"


def test_an_error_with_a_percentage_is_no_progress_bar(log):
    assert last_lines(log(traceback("ValueError: 95% of it is in use"))).endswith("ValueError: 95% of it is in use")


def test_where_lines_do_not_fit_the_long_ones_lose_their_ends(log):
    # Two lines of 10 characters, and one that gets what they leave of 900, less three for each separator.
    told = last_lines(log(f"{'a' * 10}\nValueError: {'b' * 5000}\n{'c' * 10}\n"))
    first, error, last = told.split(" | ")
    assert (first, last) == ("a" * 10, "c" * 10)
    assert error.startswith("ValueError: bbb")
    assert len(error) == 900 - 3 * 3 - 2 * 10


def test_of_a_large_log_only_the_end_is_read(log):
    # A megabyte, of which the last 64 kB cannot hold the out-of-memory at its head.
    text = traceback(OOM) + f"{INFO}a step of 64 tokens\n" * 16_000 + traceback("KeyError: 'weight'")
    told = epitaph("the engine died: EngineCore, exit code 1", log(text))
    assert len(text) > 1_000_000
    assert "out of memory" not in told
    assert told.endswith("KeyError: 'weight'")


def test_a_megabyte_without_a_line_end_is_told_in_bounds(log):
    assert last_lines(log("x" * 1_000_000)) == "x" * (900 - 3)


def test_the_words_of_what_happened_are_one_line_in_bounds_too(log):
    told = epitaph("the engine did not start: " + "many\nwords " * 1000, log(traceback(OOM)))
    assert told.startswith("the engine did not start: many words many words ")
    assert len(told.splitlines()) == 1
    assert len(told) <= LONGEST
    assert OOM in told


PIECES = st.sampled_from(
    [CORE, INFO, "\r", "\n", "\r\n", "\x1b[31m", "\u2028", "\x85", "ValueError: ", "99% ", " ", OOM]
)


@given(
    st.one_of(st.binary(max_size=2000), st.lists(st.one_of(PIECES, st.text(max_size=20))).map("".join).map(str.encode))
)
def test_whatever_a_log_holds_is_told_in_one_line_in_bounds(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.log"
    path.write_bytes(content)
    told = epitaph("the engine died", path)
    assert told.startswith("the engine died")
    assert len(told.splitlines()) == 1
    assert len(told) <= LONGEST
    assert not any(character < " " or character == "\x7f" for character in told)


def test_what_an_earlier_engine_wrote_into_the_same_log_is_not_this_ones(log):
    file = log(traceback(OOM))
    began = file.stat().st_size
    with file.open("a") as appended:
        appended.write("Using max model len 1024\n")
    assert epitaph("the engine died", file, began) == "the engine died; its last words: Using max model len 1024"
