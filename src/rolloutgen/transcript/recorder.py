"""The transcript of an attempt that asks a model, written call by call; the schema is in the package's docstring.

Synchronous and quick: of a call it costs the writing of what is new in it, and a hash of every message that was sent.
Not safe for threads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from rolloutgen.transcript.lines import SCHEMA_VERSION, Encoded, Lines, Message, now
from rolloutgen.transcript.pieces import Body, Known, ids_parts, message_parts, packed, text_parts
from rolloutgen.transcript.tips import Ids, Tip, Tips
from rolloutgen.transcript.token_ids import TokenIds

Surface = Literal["chat", "completions", "messages"]
End = Literal["answered", "aborted", "refused", "failed"]

BYTES_MAX: Final = 4 * 2**30
MESSAGES_MAX: Final = 1_000_000
"""Beyond either a transcript is full: different messages are remembered, at 200 bytes each."""
_PLAIN: Final = (
    *("end", "status", "finish_reason", "usage", "id", "error"),
    *("queued_sec", "held_sec", "served_sec", "first_token_sec", "server_seed"),
)
"""Fields of a reply that stand in its line as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A call when it is sent to the model server.

    ``surface`` is what the scaffold spoke, ``asked`` its own parameters (without messages, prompt, tools, system).
    ``sent`` is the whole body that goes to vLLM, always in the form of chat/completions or completions; its messages
    are objects. ``side``: no turn of the agent (a title, a condenser).
    """

    surface: Surface
    asked: Mapping[str, Any]
    sent: Mapping[str, Any]
    side: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """How a call ended.

    ``end``: aborted: the client left, or its key died; refused: 4xx of vLLM or of the gateway; failed: our reasons.
    ``status`` is the HTTP status that the scaffold got (None: it had left). ``message`` is the assistant's in the form
    of chat (completions: ``{"text": ...}``), as far as it came. ``tries``: ``{"status": 500, "sec": 0.1}`` or
    ``{"error": "refused", "sec": 0.1}``. ``prompt_ids``: as ``TokenIds`` where they are many. ``response_ids`` and
    ``logprobs`` are of the sampled tokens.
    """

    end: End
    status: int | None
    message: Message | None = None
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    id: str | None = None
    error: str = ""
    prompt_ids: Sequence[int] | TokenIds | None = None
    response_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    tries: Sequence[Mapping[str, Any]] = ()
    queued_sec: float = 0.0
    held_sec: float = 0.0
    served_sec: float = 0.0
    first_token_sec: float | None = None
    server_seed: int | None = None


class Recorder:
    """The one writer of an attempt's transcript.

    Methods raise OSError where the disk refuses, and then again at every later call: what would follow would name
    messages that are not there. They raise ValueError after ``close``.
    """

    def __init__(self, path: Path, *, start: Mapping[str, Any], token_ids: bool, logprobs: bool) -> None:
        """Create ``path`` (an older file is an error) and write the first line, with what ``start`` says."""
        self._lines = Lines(path)
        self._token_ids = token_ids
        self._logprobs = logprobs
        self._messages = Known()
        self._tools = Known()
        self._tips = Tips()
        self._under_way: dict[int, Tip] = {}
        self._calls = 0
        self._branches = 0
        self._broken: OSError | None = None
        recorded = {"schema_version": SCHEMA_VERSION, "token_ids": token_ids, "logprobs": logprobs}
        self._write("start", {**recorded, **start})

    @property
    def is_full(self) -> bool:
        """Whether no honest agent says so much. What comes then is to be refused: it would be written all the same."""
        return self._lines.n_bytes > BYTES_MAX or len(self._messages) > MESSAGES_MAX

    def request(self, request: Request) -> int:
        """Write down a call that is sent now; returns its number (0, 1, ...)."""
        self._refuse_if_over()
        body = Body.of(request.sent)
        noted = [self._messages.note(message) for message in body.messages]
        sent = packed([number for number, _ in noted]) if body.prompt is None else body.prompt
        before = self._tips.before(sent, body.messages, request.side)
        left = None if before else self._tips.nearest(sent)
        base = before or (left[0] if left else None)
        tip = self._begin(sent, body, request.side, before, base)
        fields: dict[str, object] = {"call": tip.call, "branch": tip.branch}
        if left:
            fields["left"] = {"call": left[0].call, "shared": left[1]}
        fields |= {"side": request.side, "surface": request.surface, "asked": dict(request.asked), "sent": body.rest}
        if body.tools is not None:
            fields["tools"] = _named(self._tools.note(body.tools))
        if isinstance(sent, str):
            fields["prompt"] = text_parts(base, sent)
        elif "messages" in request.sent:
            fields["messages"] = message_parts(base, sent, [new for _, new in noted])
        self._write("request", fields)
        return tip.call

    def reply(self, call: int, reply: Reply) -> None:
        """Write down how ``call`` ended. Raises ValueError where it has ended already, or never began."""
        self._refuse_if_over()
        tip = self._under_way.pop(call, None)
        if tip is None:
            raise ValueError(f"call {call} is not under way")
        noted = None if reply.message is None else self._messages.note(reply.message)
        fields: dict[str, object] = {"call": call, **{name: getattr(reply, name) for name in _PLAIN}}
        fields["message"] = None if noted is None else _named(noted)
        fields |= {"tries": [dict(each) for each in reply.tries], **self._ids(tip, reply)}
        self._write("reply", fields)
        tip.end(reply.message, None if noted is None else noted[0], answered=reply.end == "answered")
        self._tips.put(tip)

    def close(self, ending: Mapping[str, Any]) -> None:
        """Write the last line and bring all to the disk. Idempotent. Raises OSError; the file is closed then too."""
        if not self._lines.is_open:
            return
        try:
            self._refuse_if_over()
            self._write("end", dict(ending))
            self._lines.sync()
        finally:
            self._lines.close()

    def _begin(self, sent: bytes | str, body: "Body", side: bool, before: Tip | None, base: Tip | None) -> Tip:
        tip = Tip(
            call=self._calls,
            branch=before.branch if before else self._branches,
            side=side,
            sent=sent,
            stops=body.stops,
            beginning=body.beginning,
            ids=base.ids if base else None,
            own_ids=before is not None and before.own_ids,
        )
        self._calls += 1
        self._branches += before is None
        self._under_way[tip.call] = tip
        self._tips.put(tip)
        return tip

    def _ids(self, tip: Tip, reply: Reply) -> dict[str, object]:
        """Token ids and what they tell; of an answered call, they become what the next one is compared with."""
        logprobs = list(reply.logprobs) if self._logprobs and reply.logprobs is not None else None
        found: dict[str, object] = {
            "prompt_ids": None,
            "response_ids": None,
            "prefix_break": None,
            "logprobs": logprobs,
        }
        if not self._token_ids:
            return found
        if reply.response_ids is not None:
            found["response_ids"] = list(reply.response_ids)
        if reply.prompt_ids is None:
            return found
        ids = TokenIds.of(reply.prompt_ids)
        found["prefix_break"] = tip.own_ids and tip.ids is not None and not ids.startswith(tip.ids.ids)
        found["prompt_ids"] = ids_parts(tip.ids, ids)
        if reply.end == "answered" and reply.response_ids is not None:
            tip.ids, tip.own_ids = Ids(tip.call, TokenIds(ids + TokenIds.of(reply.response_ids))), True
        return found

    def _refuse_if_over(self) -> None:
        if self._broken is not None:
            raise OSError(self._broken.errno, self._broken.strerror, self._broken.filename)
        if not self._lines.is_open:
            raise ValueError("the transcript is closed")

    def _write(self, kind: str, fields: Mapping[str, object]) -> None:
        try:
            self._lines.write({"type": kind, "at": now(), **fields})
        except OSError as error:
            self._broken = error
            raise


def _named(noted: tuple[int, Encoded | None]) -> Encoded | int:
    """What stands for a thing in a line: itself the first time, then its number."""
    number, new = noted
    return number if new is None else new
