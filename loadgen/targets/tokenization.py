"""Who counts the tokens of synthetic text: a tokenizer on disk, the server, the simulator, or else a guess."""

import anyio
import msgspec

from loadgen.errors import TargetError
from loadgen.profile import HttpTarget, Workload
from loadgen.sim.model import tokenizer
from loadgen.targets.http.preflight import server_tokenize
from loadgen.targets.http.session import HttpSession
from loadgen.workload.request import Message, Tokenization
from loadgen.workload.tokens import PROBE_LINES, PROBE_TEXT, estimate, from_count, from_token_strings, from_tokenizer

_CHAT = (Message("user", PROBE_TEXT),)


def tokenizer_of(workload: Workload) -> Tokenization | None:
    """The counts of the profile's own tokenizer; None where it names none. Raises LoadgenError where it is unusable."""
    return None if workload.tokenizer is None else from_tokenizer(workload.tokenizer)


async def tokenizer_of_server(session: HttpSession, target: HttpTarget) -> Tokenization:
    """What the server's `/tokenize` tells, asked three times; an estimate where it has none or does not answer.

    A model that pools or only continues text may have no chat template, and then refuses the conversation alone.
    """
    try:
        with anyio.fail_after(target.preflight_timeout.seconds):
            plain = await server_tokenize(session, prompt=PROBE_TEXT)
            lines = await server_tokenize(session, prompt=PROBE_LINES)
            chat = await server_tokenize(session, messages=_CHAT)
    except (TimeoutError, TargetError):
        return estimate()
    if plain is None:
        return estimate()
    if plain.token_strs is None:
        return from_count(plain.count, 0 if chat is None else chat.count - plain.count, "server")
    learnt = from_token_strings(plain.token_strs, 0, "server", line_strs=None if lines is None else lines.token_strs)
    if chat is None:
        return learnt
    return msgspec.structs.replace(learnt, template_tokens=chat.count - (plain.count - learnt.special_tokens))


def tokenizer_of_simulator() -> Tokenization:
    """The simulator's own rule, for its model inside a worker."""
    plain = tokenizer.token_strings(tokenizer.encode(PROBE_TEXT))
    lines = tokenizer.token_strings(tokenizer.encode(PROBE_LINES))
    chat = tokenizer.count_chat([("user", PROBE_TEXT)])
    return from_token_strings(plain, chat - len(plain), "simulator", line_strs=lines)
