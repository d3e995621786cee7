"""Why an engine died or did not start: the last lines of its log, and the causes that its words suggest."""

import re
from pathlib import Path
from typing import Final

LINES: Final = 5
_TAIL_BYTES: Final = 65_536
_MAX_CHARACTERS: Final = 900
"""Of what happened, and of the last words."""
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
_SILENT: Final = re.compile(
    r"\d+%\s|it/s\]|^\s|^[\s^~]*$|^Traceback |^During handling|^The above exception|^Please |"
    r"^\[shutdown\]|^AsyncLLM output_handler failed"
)
"""Progress bars, the frames of tracebacks, lines between them, and what every engine says as it ends."""
_ERROR: Final = re.compile(r"^[\w.]*(?:Error|Exception)\b")
_GENERIC: Final = re.compile(r"WorkerProc initialization failed|Engine core initialization failed|[Ss]ee stack trace")
"""Errors that only say that there was another."""
_ERRORS: Final = 3
_COMPLAINT: Final = re.compile(r"ERROR|Error|Exception|FATAL|[Kk]illed")
_PREFIX: Final = re.compile(r"^(?:\(\S+ pid=\d+\) )?(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]]*\] ?)?)?")
"""What vLLM puts before its lines: the process, the level, the time, and where in its source."""

_CAUSES: Final = (
    (
        r"out of memory|MemoryError|bad_alloc|annot allocate memory|No available memory|not enough (?:\w+ )?memory|"
        r"memory profiling|available KV cache memory|larger than the maximum number of tokens that can be stored|"
        r"less than desired GPU memory",
        "memory: lower gpu_memory_utilization, max_model_len or max_num_seqs in target.engine_args, or use more GPUs",
    ),
    (
        r"less than desired CPU memory",
        "memory: set the environment variable VLLM_CPU_KVCACHE_SPACE to fewer GiB, 1 for a small model",
    ),
    (
        r"NotImplementedError|not implemented|no kernel image|[Uu]nsupported (?!operand|format)|"
        r"(?:is|are) not supported|not compiled with",
        "an operation, data type or model architecture that this vLLM does not support on this device",
    ),
    (
        r"safetensors|does not appear to have|Can't load|couldn't connect|Repository Not Found|HFValidationError|"
        r"Invalid repository ID|model_type|not recognize this architecture|not a valid model identifier|Error no file|"
        r"loading state_dict|"
        r"LocalEntryNotFound",
        "the model could not be loaded: check target.model",
    ),
)
_KILLED: Final = "it was killed from outside: by somebody, or by the system as memory ran out"


def last_lines(log: Path | None, count: int = LINES, since: int = 0) -> str:
    """The last lines of a log that say something, joined to one line of at most 900 characters; empty where there are
    none.

    The last errors are among them, though other processes wrote their own ends after them.
    """
    said = _said(log, since)
    errors = [line for line in said if _ERROR.search(line) and not _GENERIC.search(line)][-_ERRORS:]
    others = [line for line in said if line not in errors]
    chosen = errors + others[-max(1, count - len(errors)) :]
    return _joined([line for line in said if line in chosen])


def likely_cause(words: str) -> str | None:
    """What the words of an error or a log suggest, and what to do; None where they suggest nothing."""
    return next((cause for pattern, cause in _CAUSES if re.search(pattern, words)), None)


def epitaph(what: str, log: Path | None, since: int = 0) -> str:
    """One line about an engine that is gone: what happened, the likely cause, and the last words of its log.

    `since` is where in the log it began, in bytes: a worker that is started again appends to the same.
    """
    what = _joined([" ".join(what.split())])
    complaints = "\n".join(words for line, words in _telling(log, since) if _COMPLAINT.search(line))
    cause = likely_cause(what) or likely_cause(complaints) or (_KILLED if "SIGKILL" in what else None)
    words = last_lines(log, since=since)
    parts = [what]
    if cause is not None:
        parts.append(f"likely {cause}")
    if words:
        parts.append(f"its last words: {words}")
    return "; ".join(parts)


def _said(log: Path | None, since: int) -> list[str]:
    """What the log says, each thing once, where it was said last: the same is often told by several processes."""
    said = [" ".join(words.split()) for _, words in _telling(log, since)]
    return list(dict.fromkeys(reversed(said)))[::-1]


def _telling(log: Path | None, since: int) -> list[tuple[str, str]]:
    """The lines that say something, whole and without their prefix. Of a traceback only the last says what went wrong;
    its frames also name files and functions that have nothing to do with it."""
    lines = [(line, _PREFIX.sub("", line)) for line in _tail(log, since)]
    return [(line, words) for line, words in lines if _ERROR.search(words) or not _SILENT.search(words)]


def _joined(lines: list[str]) -> str:
    """Lines as one of bounded length: where they do not fit, the long ones lose their ends."""
    room = _MAX_CHARACTERS - len(" | ") * len(lines)
    length = next(n for n in range(room, 0, -1) if sum(min(len(line), n) for line in lines) <= room)
    return " | ".join(line[:length] for line in lines)


def _tail(log: Path | None, since: int) -> list[str]:
    if log is None or not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(since, file.tell() - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    # What a progress bar overwrote is not said twice. (`splitlines` would take it for a line of its own.)
    return [_CONTROL.sub("", line.rstrip("\r").rsplit("\r", 1)[-1]) for line in text.split("\n")]
