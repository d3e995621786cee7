"""The routes of models that generate: chats, completions, responses, messages and transcriptions."""

from aiohttp import web

from loadgen.sim.api.answers import Answer
from loadgen.sim.api.completions import read_chat, read_completion
from loadgen.sim.api.messages import MessageAnswer, count_tokens, message_error, read_message
from loadgen.sim.api.protocol import ApiError, body_reply, json_reply
from loadgen.sim.api.responses import ResponseAnswer, read_response
from loadgen.sim.api.service import Service
from loadgen.sim.api.transcription import TranscriptionAnswer, read_transcription


class GeneratingRoutes:
    """The routes over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._config = service.config

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register them."""
        router.add_post("/v1/chat/completions", self._chat)
        router.add_post("/v1/completions", self._completion)
        router.add_post("/v1/responses", self._response)
        router.add_post("/v1/messages", self._message)
        router.add_post("/v1/messages/count_tokens", self._count_tokens)
        router.add_post("/v1/audio/transcriptions", self._transcription)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        service = self._service
        with service.concurrency.request():
            admitted = await service.admit(request)
            generation = service.doomed(read_chat(admitted.body, self._config), admitted.fate)
            answer = Answer(generation, service.answer_id("chatcmpl-", request), self._config.model)
            return await service.answer(admitted, generation, answer)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        service = self._service
        with service.concurrency.request():
            admitted = await service.admit(request)
            generation = service.doomed(read_completion(admitted.body, self._config), admitted.fate)
            answer = Answer(generation, service.answer_id("cmpl-", request), self._config.model)
            return await service.answer(admitted, generation, answer)

    async def _response(self, request: web.Request) -> web.StreamResponse:
        service = self._service
        with service.concurrency.request():
            admitted = await service.admit(request)
            asked = read_response(admitted.body, self._config)
            generation = service.doomed(asked.generation, admitted.fate)
            answer = ResponseAnswer(asked, generation, service.answer_id("resp_", request), self._config.model)
            return await service.answer(admitted, generation, answer)

    async def _message(self, request: web.Request) -> web.StreamResponse:
        service = self._service
        with service.concurrency.request():
            try:
                admitted = await service.admit(request)
                generation = service.doomed(read_message(admitted.body, self._config), admitted.fate)
            except ApiError as error:
                return _message_error(error)
            answer = MessageAnswer(generation, service.answer_id("chatcmpl-", request), self._config.model)
            return await service.answer(admitted, generation, answer)

    async def _count_tokens(self, request: web.Request) -> web.StreamResponse:
        try:
            return json_reply(count_tokens(await request.read(), self._config))
        except ApiError as error:
            return _message_error(error)

    async def _transcription(self, request: web.Request) -> web.StreamResponse:
        service = self._service
        with service.concurrency.request():
            form = await request.post()  # leaves nothing of the body to read
            admitted = await service.admit(request)
            asked = read_transcription(form, self._config)
            generation = service.doomed(asked.generation, admitted.fate)
            answer_id = service.answer_id("transcribe-", request)
            answer = TranscriptionAnswer(asked, generation, answer_id, self._config.model)
            return await service.answer(admitted, generation, answer)


def _message_error(error: ApiError) -> web.Response:
    # What is wrong with the body's shape is told before the route is reached, in the shape of all others.
    body = error.body if error.kind == "Bad Request" else message_error(error)
    return body_reply(body, error.status, error.headers)
