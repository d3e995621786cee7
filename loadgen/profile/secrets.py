"""No secret stands in a profile: what looks like one is refused, and taken out before any other fault could show it."""

import re
from copy import deepcopy
from typing import Any, Final

from loadgen.profile.decoding import join, looks_secret, show
from loadgen.profile.grid import axes_in, values_in
from loadgen.profile.keys import assign, holds_secret, steps_of

_CREDENTIALS: Final = re.compile(r"^(?:[A-Za-z][A-Za-z0-9+.-]*://)?[^/?#]*@")


_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


_BY_NAME: Final = 'name the variable that holds the key: api_key_env = "VLLM_API_KEY"'


_BY_ENVIRONMENT: Final = "set the environment variable HF_TOKEN instead, or that which vLLM reads for it"


def hide_secrets(data: dict[str, Any]) -> list[str]:
    """A line for each secret in the data, which is then taken out of it, so that no later fault shows it."""
    return _hide_in_target(data.get("target")) + _hide_in_sweep(data)


def _hide_in_sweep(data: dict[str, Any]) -> list[str]:
    """A line for each value of a swept key that is a secret or holds one; the axes that have any are taken out."""
    faults: list[str] = []
    sound = []
    for position, axis in enumerate(axes_in(data)):
        key = axis.get("key")
        steps = steps_of(key) if isinstance(key, str) else None
        found: list[str] = []
        if steps is not None and holds_secret(steps):
            found.append(f"sweep[{position}].key = {show(key)}: a secret must not stand in a profile; {_BY_NAME}")
        elif steps is not None and steps[0] == "target":
            for number, value in enumerate(values_in(axis)):
                point: dict[str, Any] = {}
                assign(point, steps, deepcopy(value))
                here = f"sweep[{position}].values[{number}]"
                found += [f"{here}: {fault}" for fault in _hide_in_target(point["target"])]
        faults += found
        sound += [] if found else [axis]
    if faults:
        data["sweep"] = sound
    return faults


def _hide_in_target(target: Any) -> list[str]:
    faults = []
    if not isinstance(target, dict):
        return []
    url, headers, variable = target.get("url"), target.get("headers"), target.get("api_key_env")
    if isinstance(url, str) and _CREDENTIALS.match(url):
        faults.append(f"target.url: holds credentials before the @; {_BY_NAME}")
        target["url"] = "http://hidden"
    if isinstance(headers, dict):
        for name in [name for name in headers if looks_secret(name)]:
            faults.append(f"{join('target.headers', name)}: a secret must not stand in a profile; {_BY_NAME}")
            del headers[name]
    if isinstance(variable, str) and not _VARIABLE.fullmatch(variable):
        faults.append(f"target.api_key_env = (hidden): not the name of an environment variable; {_BY_NAME}")
        del target["api_key_env"]
    return faults + _secrets_in(target.get("engine_args"), "target.engine_args")


def _secrets_in(data: Any, path: str) -> list[str]:
    """A line for each secret at any depth, which is taken out. A yes or no is none: `hf_token = true` means the hub's
    own file."""
    faults = []
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in list(items):
        here = join(path, key)
        if isinstance(key, str) and looks_secret(key) and not isinstance(value, bool):
            faults.append(f"{here}: a secret must not stand in a profile; {_BY_ENVIRONMENT}")
            del data[key]
        else:
            faults += _secrets_in(value, here)
    return faults
