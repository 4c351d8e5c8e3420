"""How an answer, a chunk and an error look to a scaffold, by the API that it speaks."""

from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol

from rolloutgen.gateway import anthropic, jsons
from rolloutgen.gateway.errors import error_body
from rolloutgen.gateway.failures import RefusedError
from rolloutgen.gateway.sse import DONE_EVENT, KEEP_ALIVE, event

type Json = dict[str, Any]
Name = Literal["chat", "completions", "messages"]


class Surface(Protocol):
    """One API, for one call. Bytes of events are whole events."""

    @property
    def name(self) -> Name: ...

    @property
    def keep_alive(self) -> bytes:
        """What shows in a stream that somebody is there, and says nothing."""

    def whole(self, answer: Json) -> bytes:
        """The body of the answer."""

    def chunk(self, chunk: Json) -> bytes:
        """Its events."""

    def end(self) -> bytes:
        """What follows the last chunk of a whole answer."""

    def error(self, status: int, text: str) -> bytes:
        """The body of an error."""

    def refusal(self, error: RefusedError) -> bytes:
        """The body of a refusal of vLLM's."""

    def error_event(self, status: int, text: str) -> bytes:
        """The last event of a stream that failed."""


class OpenAi:
    """chat/completions and completions: what vLLM says, as it says it."""

    keep_alive: Final = KEEP_ALIVE

    def __init__(self, name: Name) -> None:
        self.name: Final = name

    def whole(self, answer: Json) -> bytes:
        return jsons.dumps(answer)

    def chunk(self, chunk: Json) -> bytes:
        return event(chunk)

    def end(self) -> bytes:
        return DONE_EVENT

    def error(self, status: int, text: str) -> bytes:
        return jsons.dumps(error_body(status, text))

    def refusal(self, error: RefusedError) -> bytes:
        return self.error(error.status, str(error)) if error.full else error.body

    def error_event(self, status: int, text: str) -> bytes:
        return event(error_body(status, text))


class Messages:
    """Anthropic's messages, translated; ``model`` is the name that the scaffold asked for."""

    name: Final = "messages"
    keep_alive: Final = anthropic.PING

    def __init__(self, model: str) -> None:
        self._model = model
        self._stream = anthropic.EventStream(model)

    def whole(self, answer: Mapping[str, Any]) -> bytes:
        return jsons.dumps(anthropic.from_chat(answer, self._model))

    def chunk(self, chunk: Mapping[str, Any]) -> bytes:
        return self._stream.chunk(chunk)

    def end(self) -> bytes:
        return self._stream.end()

    def error(self, status: int, text: str) -> bytes:
        return jsons.dumps(anthropic.error_body(status, text))

    def refusal(self, error: RefusedError) -> bytes:
        return self.error(error.status, str(error))

    def error_event(self, status: int, text: str) -> bytes:
        return self._stream.error(status, text)
