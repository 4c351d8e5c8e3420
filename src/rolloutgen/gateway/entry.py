"""The two lines that a call gets in its attempt's transcript: one when it is sent, one however it ended."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rolloutgen.errors import StoreError
from rolloutgen.gateway.answer import Answer
from rolloutgen.gateway.ledger import Call
from rolloutgen.transcript.recorder import End, Recorder, Reply, Request

type Json = dict[str, Any]


@dataclass(slots=True)
class Entry:
    """The lines of one call. ``tries`` and ``seed`` are kept true until the second is written."""

    recorder: Recorder
    request: Request | None
    call: int | None = None
    tries: list[Json] = field(default_factory=list)
    seed: int | None = None
    written: bool = False

    def sent(self) -> None:
        """Write what was asked, once."""
        if self.request is not None:
            with _stored():
                self.call = self.recorder.request(self.request)
            self.request = None  # it may be large, and the model may take long

    def ended(self, end: End, call: Call, answer: Answer, *, status: int | None, error: str = "") -> None:
        """Write how it ended, once; the clock of ``call`` has stopped."""
        if self.written:
            return
        self.sent()
        self.written = True
        assert self.call is not None
        reply = Reply(
            end=end,
            status=status,
            message=answer.message,
            finish_reason=answer.finish_reason,
            usage=answer.usage,
            id=answer.id,
            error=error,
            prompt_ids=answer.prompt_ids,
            response_ids=answer.response_ids,
            logprobs=answer.logprobs,
            tries=self.tries,
            queued_sec=call.queued_sec,
            held_sec=call.held_sec,
            served_sec=call.served_sec,
            first_token_sec=call.first_token_sec,
            server_seed=self.seed,
        )
        with _stored():
            self.recorder.reply(self.call, reply)


@contextmanager
def _stored() -> Iterator[None]:
    """A disk that refuses must not be taken for a connection that is lost."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"the transcript cannot be written: {error}") from error
