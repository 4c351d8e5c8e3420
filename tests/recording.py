"""A conversation with a recorder, in a few words."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rolloutgen.transcript.reader import Branch, Call, branches, read_calls
from rolloutgen.transcript.recorder import Recorder, Reply, Request

type Message = dict[str, Any]


def system(content: str) -> Message:
    return {"role": "system", "content": content}


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str | None, **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def calling(name: str, arguments: str, id_: str = "c1") -> list[Message]:
    return [{"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}]


def answered(message: Message | None, **more: Any) -> Reply:
    return Reply(**{"end": "answered", "status": 200, "message": message, "finish_reason": "stop", **more})


class Talk:
    """One attempt's calls into ``path``."""

    def __init__(self, path: Path, *, token_ids: bool = True, logprobs: bool = False, **start: Any) -> None:
        self.path = path
        self.recorder = Recorder(path, start=start, token_ids=token_ids, logprobs=logprobs)

    def send(self, messages: Sequence[Message], *, side: bool = False, **body: Any) -> int:
        sent = {"model": "m", "messages": list(messages), **body}
        return self.recorder.request(Request(surface="chat", asked={}, sent=sent, side=side))

    def complete(self, prompt: str, text: str, **more: Any) -> int:
        sent = {"model": "m", "prompt": prompt}
        call = self.recorder.request(Request(surface="completions", asked={}, sent=sent, side=False))
        self.recorder.reply(call, answered({"text": text}, **more))
        return call

    def ask(self, messages: Sequence[Message], said: str | Message | Reply, **body: Any) -> int:
        """A call and its reply."""
        call = self.send(messages, **body)
        reply = said if isinstance(said, Reply) else answered(assistant(said) if isinstance(said, str) else said)
        self.recorder.reply(call, reply)
        return call

    @property
    def calls(self) -> list[Call]:
        return read_calls(self.path)

    @property
    def branches(self) -> list[Branch]:
        return branches(self.calls)

    @property
    def branch_of(self) -> list[int]:
        """The branch of each call."""
        return [call.branch for call in self.calls]
