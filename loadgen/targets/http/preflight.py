"""The check before the load: is the server there, what does it serve, and does it answer one request as it should.

Whatever stands in the way ends here, in one line that says what was asked, what came, and what to do.
"""

import difflib
import re
from contextlib import suppress
from typing import Any, Final

import anyio
import msgspec
from yarl import URL

from loadgen import profile
from loadgen.clock import Clock
from loadgen.errors import TargetError
from loadgen.measure.outcome import Exchange
from loadgen.profile import HttpTarget
from loadgen.targets.base import TargetInfo
from loadgen.targets.http.endpoints.choice import longest_answer, read_message
from loadgen.targets.http.endpoints.constraint import (
    CURRENT,
    FORMER,
    NO_CONSTRAINT,
    TRIAL_LABEL,
    TRIAL_MESSAGES,
    Refused,
    find_constraint,
    without_unwanted,
)
from loadgen.targets.http.endpoints.table import endpoint_of
from loadgen.targets.http.session import HttpSession, Reply
from loadgen.targets.http.transport import Transport, TransportError, open_transport
from loadgen.units import format_duration
from loadgen.workload.request import Message, Request, Tokenization
from loadgen.workload.tokens import PROBE_LINES, PROBE_TEXT, estimate, from_count, from_token_strings

_DISPENSABLE: Final = {
    "ignore_eos": "the model may end before the tokens asked for",
    "min_tokens": "the model may end before the tokens asked for",
    "stream_options": "tokens are counted without the server's usage",
}
"""Fields that are ours and that a server may do without, each with what is lost."""

_CHECK_ADDRESS: Final = "check --target (target.url), and that the server is up"
_CHECK_KEY: Final = "check the key in the environment variable that target.api_key_env names"
_HINTS: Final = {
    "connect": _CHECK_ADDRESS,
    "dns": "check the host name in --target (target.url)",
    "connect_timeout": _CHECK_ADDRESS,
    "tls": "check the scheme of --target (target.url); target.verify_tls = false accepts any certificate",
    "disconnect": "check the server's log, and the scheme of --target (target.url)",
    "protocol": "check that --target (target.url) is a server with the OpenAI API",
    "http_401": _CHECK_KEY,
    "http_403": _CHECK_KEY,
    "http_404": "check --target (target.url) and --model (target.model)",
    "not_a_label": "check [workload.body]",
    NO_CONSTRAINT: 'workload.kind = "choice" needs a server that constrains answers: vLLM does, since 0.11 by '
    "structured_outputs, before by guided_choice",
    "http_400": "check [workload] and its body fields",
    "http_422": "check [workload] and its body fields",
    "http_429": "the server limits requests: wait, or raise its limit",
}
_HINT: Final = "check the server's log"


class TokenizeAnswer(msgspec.Struct, frozen=True):
    """What `/tokenize` said of a text or a conversation."""

    count: int
    tokens: tuple[int, ...] = ()
    token_strs: tuple[str, ...] | None = None
    max_model_len: int | None = None


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


async def check_http(
    target: profile.HttpTarget, workload: profile.Workload, request: Request, clock: Clock
) -> TargetInfo:
    """Look at the server and try one request on it, all within `target.preflight_timeout`.

    `request` should be small; it is sent as any other request of the load will be. Optional fields that the server
    refuses by name are left out, with a warning each, here and in every request of the load.

    Raises:
        TargetError: the server cannot be loaded.
    """
    check = _Check(target, workload, clock)
    try:
        async with open_transport(target.connect_timeout, target.verify_tls, clock) as transport:
            with anyio.fail_after(target.preflight_timeout.seconds):
                return await check.run(transport, request)
    except TimeoutError:
        limit = format_duration(target.preflight_timeout)
        what = f"not answered within target.preflight_timeout = {limit}"
        raise TargetError(f"{check.asking}: {what}; {_HINT}, or allow more time") from None


async def server_tokenize(
    session: HttpSession,
    *,
    prompt: str | None = None,
    messages: tuple[Message, ...] | None = None,
) -> TokenizeAnswer | None:
    """Ask the server how it tokenizes a text, or a conversation with its template; None where it does not say.

    Raises:
        TargetError: the server could not be reached.
    """
    question: dict[str, Any] = {"return_token_strs": True}
    question |= {"prompt": prompt} if messages is None else {"messages": messages}
    if session.model is not None:
        question["model"] = session.model
    # Not under /v1: vLLM has it at its root.
    url = session.server.at("tokenize")
    try:
        reply = await session.fetch("POST", url, question)
    except TransportError as error:
        raise _refused(f"POST {url}", error.kind, str(error)) from None
    if reply.status != 200:
        return None
    try:
        return msgspec.json.decode(reply.body, type=TokenizeAnswer)
    except msgspec.MsgspecError:
        return None


class _Check:
    """One check under way. `asking` is the question that is open, to be named if no answer comes."""

    def __init__(self, target: profile.HttpTarget, workload: profile.Workload, clock: Clock) -> None:
        self.asking = ""
        self._target = target
        self._workload = workload
        self._clock = clock
        self._warnings: list[str] = []

    async def run(self, transport: Transport, request: Request) -> TargetInfo:
        blank = TargetInfo(kind="http")
        session = HttpSession(transport, self._target, self._workload, blank, self._clock.now_ns)
        await self._look_at_health(session)
        models = await self._models(session)
        info = TargetInfo(
            kind="http",
            url=str(session.server),
            model=self._model(session, models),
            available_models=tuple(model.id for model in models),
            version=await self._version(session),
        )
        limits = {model.id: model.max_model_len for model in models}
        info = msgspec.structs.replace(info, max_model_len=limits.get(info.model or ""))
        if self._workload.kind == "choice" and not {CURRENT, FORMER} & set(self._workload.body):
            info = await self._find_constraint(transport, info)
        info = await self._try(transport, info, request)
        return msgspec.structs.replace(info, warnings=tuple(self._warnings))

    async def _look_at_health(self, session: HttpSession) -> None:
        reply = await self._get(session, session.server.at("health"))
        if reply.status >= 500:
            self._warnings.append(f"{self.asking} answered {reply.words}")

    async def _models(self, session: HttpSession) -> list[_Model]:
        """What the server says it serves; nothing where it does not say."""
        reply = await self._get(session, session.server.api("models"))
        models: list[_Model] = []
        with suppress(msgspec.MsgspecError):
            models = msgspec.json.decode(reply.body, type=_Models).data
        if not models and self._target.model == "auto":
            self._warnings.append(
                f"{self.asking} names no model (status {reply.status}): requests name none, unless --model does"
            )
        return models

    async def _version(self, session: HttpSession) -> str | None:
        reply = await self._get(session, session.server.at("version"))
        try:
            return msgspec.json.decode(reply.body, type=dict[str, str]).get("version")
        except msgspec.MsgspecError:
            return None

    async def _get(self, session: HttpSession, url: URL) -> Reply:
        self.asking = f"GET {url}"
        try:
            return await session.fetch("GET", url)
        except TransportError as error:
            raise _refused(self.asking, error.kind, str(error)) from None

    def _model(self, session: HttpSession, models: list[_Model]) -> str | None:
        """The model to name in requests."""
        wanted = self._target.model
        served = [model.id for model in models]
        if wanted == "auto":
            return served[0] if served else None
        if served and wanted not in served:
            near = difflib.get_close_matches(wanted, served, n=1)
            meant = f' (did you mean "{near[0]}"?)' if near else ""
            names = ", ".join(f'"{name}"' for name in served)
            raise TargetError(f'{session.server} does not serve the model "{wanted}"{meant}: it serves {names}')
        return wanted

    async def _find_constraint(self, transport: Transport, info: TargetInfo) -> TargetInfo:
        """See that the server constrains answers: one that does not may happen to answer the trial with a label."""
        body = without_unwanted(self._workload.body) | {"temperature": 0.0}
        # Enough for the label, and for what a model may think before it, where the profile has room for that.
        limits = [body.pop(name, None) for name in ("max_tokens", "max_completion_tokens")]
        most = max([longest_answer((TRIAL_LABEL,)), *(limit for limit in limits if isinstance(limit, int))])
        target = msgspec.structs.replace(self._target, stream=False)

        async def say(constraint: dict[str, Any]) -> str | Refused:
            workload = profile.Workload(kind="chat", body={"max_tokens": most, **body, **constraint})
            session = HttpSession(transport, target, workload, info, self._clock.now_ns)
            return await self._said(session)

        found = await find_constraint(info.version, say)
        if found.field is None:
            raise _refused(self.asking, NO_CONSTRAINT, found.reason)
        return msgspec.structs.replace(info, constraint=found.field)

    async def _said(self, session: HttpSession) -> str | Refused:
        """What the server answers to the trial of a constraint."""
        self.asking = f"POST {session.url}"
        exchange, contents = Exchange(), list[str | None]()

        def keep(body: bytes, into: Exchange) -> None:
            message = read_message(body, into)
            contents.append(None if message is None else message.content)

        prepared = session.prepare(Request(index=0, messages=TRIAL_MESSAGES))
        await session.ask("POST", session.url, prepared, exchange, keep)
        if exchange.failure in ("http_400", "http_422"):
            return Refused(exchange.message)
        if exchange.failure is not None:
            raise self._failure(exchange)
        if not contents or contents[0] is None:
            words = f"the trial has no answer (finish_reason {exchange.finish_reason!r}): max_tokens may be too few"
            raise _refused(self.asking, NO_CONSTRAINT, words, "check [workload.body]")
        return contents[0]

    async def _try(self, transport: Transport, info: TargetInfo, request: Request) -> TargetInfo:
        """Send the request, again without what is refused, until it is answered or something else goes wrong."""
        while True:
            session = HttpSession(transport, self._target, self._workload, info, self._clock.now_ns)
            self.asking = f"POST {session.url}"
            exchange = Exchange()
            await session.send(session.prepare(request), exchange)
            if exchange.failure is None:
                self._warn_of_answer(request, exchange)
                return info
            refused = self._refused_fields(exchange, info)
            if not refused:
                raise self._failure(exchange)
            self._warnings += [
                f"the server refuses {name}, which is left out: {_DISPENSABLE[name]}" for name in refused
            ]
            info = msgspec.structs.replace(info, omitted_fields=(*info.omitted_fields, *refused))

    def _refused_fields(self, exchange: Exchange, info: TargetInfo) -> tuple[str, ...]:
        """Those of our own fields that the server's words name, where it refused the request for what it says."""
        if exchange.failure not in ("http_400", "http_422"):
            return ()
        ours = [name for name in _DISPENSABLE if name not in self._workload.body and name not in info.omitted_fields]
        return tuple(name for name in ours if re.search(rf"\b{name}\b", exchange.message))

    def _failure(self, exchange: Exchange) -> TargetError:
        kind = exchange.failure or ""
        if kind in ("http_401", "http_403") and self._target.api_key_env is None:
            hint = "name the environment variable that holds the key in target.api_key_env"
            return _refused(self.asking, kind, exchange.message, hint)
        if kind == "http_404" and self._workload.kind not in ("chat", "completion"):
            hint = (
                f'check that its model is made for workload.kind = "{self._workload.kind}", and --target (target.url)'
            )
            return _refused(self.asking, kind, exchange.message, hint)
        return _refused(self.asking, kind, exchange.message)

    def _warn_of_answer(self, request: Request, exchange: Exchange) -> None:
        """Note what the answer to the trial lacks."""
        endpoint = endpoint_of(self._workload, TargetInfo(kind="http"))
        asked = endpoint.streams and self._target.stream and "stream" not in self._workload.body
        if asked and not exchange.streamed:
            self._warnings.append("the server does not stream: there is no time to first token, nor between tokens")
        if not endpoint.generates:
            if exchange.prompt_tokens is None:
                self._warnings.append("the server reports no usage: how many tokens it took is not known")
        elif exchange.output_tokens is None:
            instead = "chunks are counted for tokens" if exchange.streamed else "output tokens are not known"
            self._warnings.append(f"the server reports no usage: {instead}")
        elif request.output_tokens is not None and exchange.output_tokens < request.output_tokens:
            self._warnings.append(
                f"the trial asked for {request.output_tokens} tokens and got {exchange.output_tokens}: "
                "outputs may be short"
            )


def _refused(asked: str, kind: str, words: str, hint: str | None = None) -> TargetError:
    """The one line for a question that got no good answer."""
    came = kind.replace("http_", "status ") if kind.startswith("http_") else kind.replace("_", " ")
    return TargetError(f"{asked}: {came}: {words}; {hint or _HINTS.get(kind, _HINT)}")


_CHAT = (Message("user", PROBE_TEXT),)


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
