"""Why an engine died or did not start: the last lines of its log, and the causes that its words suggest."""

import re
from pathlib import Path
from typing import Final

LINES: Final = 5
_TAIL_BYTES: Final = 65_536
_MAX_CHARACTERS: Final = 900
_CONTROL: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f]")
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
        r"out of memory|OutOfMemory|No available memory|not enough|memory profiling|larger than the maximum number of "
        r"tokens that can be stored|less than desired GPU memory",
        "memory: lower gpu_memory_utilization, max_model_len or max_num_seqs in target.engine_args, or use more GPUs",
    ),
    (
        r"NotImplementedError|not implemented|no kernel image|[Uu]nsupported|is not supported|not compiled with",
        "an operation, data type or model architecture that this vLLM does not support on this device",
    ),
    (
        r"safetensors|does not appear to have|Can't load|couldn't connect|Repository Not Found|HFValidationError|"
        r"model_type|not a valid model identifier|Error no file|state_dict|LocalEntryNotFound",
        "the model could not be loaded: check target.model",
    ),
)
_KILLED: Final = "it was killed from outside: by somebody, or by the system as memory ran out"


def last_lines(log: Path | None, count: int = LINES) -> str:
    """The last lines of a log that say something, joined to one line; empty where there are none.

    The last errors are among them, though other processes wrote their own ends after them.
    """
    said: list[str] = []
    for line in _tail(log):
        words = _PREFIX.sub("", line)
        # Of a traceback its last line says what went wrong; the same is often told by several processes.
        if not _SILENT.search(words) and words.strip() not in said:
            said.append(words.strip())
    errors = [line for line in said if _ERROR.search(line) and not _GENERIC.search(line)][-_ERRORS:]
    others = [line for line in said if line not in errors]
    chosen = errors + others[-max(1, count - len(errors)) :]
    return " | ".join(line for line in said if line in chosen)[-_MAX_CHARACTERS:]


def likely_cause(words: str) -> str | None:
    """What the words of an error or a log suggest, and what to do; None where they suggest nothing."""
    return next((cause for pattern, cause in _CAUSES if re.search(pattern, words)), None)


def epitaph(what: str, log: Path | None) -> str:
    """One line about an engine that is gone: what happened, the likely cause, and the last words of its log."""
    tail = _tail(log)
    complaints = "\n".join(line for line in tail if _COMPLAINT.search(line))
    cause = likely_cause(what) or likely_cause(complaints) or (_KILLED if "SIGKILL" in what else None)
    words = last_lines(log)
    parts = [what]
    if cause is not None:
        parts.append(f"likely {cause}")
    if words:
        parts.append(f"its last words: {words}")
    return "; ".join(parts)


def _tail(log: Path | None) -> list[str]:
    if log is None or not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    # What a progress bar overwrote is not said twice.
    return [_CONTROL.sub("", line.rsplit("\r", 1)[-1]) for line in text.splitlines()]
