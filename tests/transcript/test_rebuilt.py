"""What was sent is put together again, equal as JSON, whatever a scaffold makes of its history (A6)."""

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutgen.transcript.reader import UNFINISHED, read_calls
from rolloutgen.transcript.recorder import Recorder, Reply, Request

type Json = dict[str, Any]


def canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def as_json(value: Any) -> Any:
    """What comes out of a parser: two halves of a surrogate pair in a row are one letter."""
    return json.loads(json.dumps(value))


TEXT = st.text(st.characters(blacklist_categories=()), max_size=12) | st.sampled_from(
    ["", "ls", "ls\n", "\ud83d", "ü\x00"]
)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {"id": TEXT, "function": st.fixed_dictionaries({"name": TEXT, "arguments": TEXT | st.just('{"a": 1}')})}
    ),
    max_size=2,
)
CONTENT = TEXT | st.none() | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}), max_size=2)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"]), "content": CONTENT},
    optional={"tool_calls": CALLS, "name": TEXT, "reasoning": TEXT, "x": VALUE},
).map(as_json)
SAID = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": CONTENT}, optional={"tool_calls": CALLS, "reasoning": TEXT}
).map(as_json)
TOOLS = st.lists(st.fixed_dictionaries({"type": st.just("function"), "function": VALUE}), max_size=2).map(as_json)
IDS = st.lists(st.integers(0, 3), max_size=6)


class Client:
    """A scaffold without manners: it draws what it does to its history before each call."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        self.history: list[Json] = self.draw(st.lists(MESSAGE, max_size=3))
        self.prompt = ""
        self.said: Json | None = None
        self.ids: list[int] = []

    def body(self) -> Json:
        parameters: Json = self.draw(
            st.dictionaries(st.sampled_from(["temperature", "stop", "user"]), VALUE).map(as_json)
        )
        if self.draw(st.booleans()):
            parameters["tools"] = self.draw(TOOLS | st.none())
        if self.draw(st.integers(0, 5)) == 0:
            said = str((self.said or {}).get("content") or "")
            self.prompt = as_json(self.draw(st.sampled_from(["", self.prompt + said])) + self.draw(TEXT))
            return {**parameters, "prompt": self.draw(st.sampled_from([self.prompt, [1, 2], None]))}
        getattr(self, self.draw(st.sampled_from(["go_on", "change", "condense", "again", "drop", "rest"])))()
        if self.draw(st.booleans()):
            parameters["continue_final_message"] = self.draw(st.booleans())
        return {**parameters, "messages": as_json(self.history)}

    def go_on(self) -> None:
        self.history += [self.said] if self.said else []
        self.history += self.draw(st.lists(MESSAGE, max_size=2))

    def change(self) -> None:
        """The reply comes back in another form."""
        if self.said:
            said = {key: value for key, value in self.said.items() if self.draw(st.booleans()) or key == "role"}
            if isinstance(said.get("content"), str):
                said["content"] += self.draw(TEXT)
            self.history += [as_json(said)]

    def condense(self) -> None:
        self.history = [*self.draw(st.lists(MESSAGE, max_size=1)), *self.history[self.draw(st.integers(0, 4)) :]]

    def again(self) -> None:
        self.history += self.history[: self.draw(st.integers(0, 3))]

    def drop(self) -> None:
        if self.history:
            at = self.draw(st.integers(0, len(self.history) - 1))
            del self.history[at]

    def rest(self) -> None:
        """Nothing: the same call again."""

    def reply(self, body: Json) -> Reply:
        self.said = self.draw(SAID | st.none())
        said = self.said if "messages" in body or self.said is None else {"text": str(self.said.get("content") or "")}
        prompt = self.draw(st.sampled_from([self.ids, self.ids[:-1], []])) + self.draw(IDS)
        response = self.draw(IDS)
        self.ids = prompt + response
        return Reply(
            end=self.draw(st.sampled_from(["answered", "answered", "answered", "aborted", "refused", "failed"])),
            status=self.draw(st.sampled_from([200, 400, None])),
            message=said,
            finish_reason=self.draw(st.sampled_from(["stop", "length", None])),
            usage=as_json(self.draw(st.dictionaries(TEXT, VALUE, max_size=1))),
            error=as_json(self.draw(TEXT)),
            prompt_ids=self.draw(st.sampled_from([prompt, None])),
            response_ids=self.draw(st.sampled_from([response, None])),
            logprobs=[-0.5] * len(response),
            tries=[{"status": 500, "sec": 0.25}],
        )


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_calls_are_rebuilt(data: st.DataObject) -> None:
    client, sent, replies = Client(data), [], {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "transcript.jsonl"
        recorder = Recorder(path, start={"scaffold": "any"}, token_ids=True, logprobs=True)
        open_calls: list[int] = []
        for _ in range(data.draw(st.integers(1, 12))):
            body, side = client.body(), data.draw(st.booleans())
            asked = as_json(data.draw(st.dictionaries(TEXT, VALUE, max_size=1)))
            call = recorder.request(Request(surface="chat", asked=asked, sent=body, side=side))
            assert call == len(sent)
            sent.append((as_json(body), asked, side))
            open_calls.append(call)
            for ending in data.draw(st.lists(st.sampled_from(open_calls), unique=True)):
                open_calls.remove(ending)
                replies[ending] = client.reply(sent[ending][0])
                recorder.reply(ending, replies[ending])
        if data.draw(st.booleans()):
            recorder.close({"ending": "done"})
        calls = read_calls(path)
    assert len(calls) == len(sent)
    for call, (body, asked, side) in zip(calls, sent, strict=True):
        assert canonical(call.sent()) == canonical(body)
        assert canonical(call.asked) == canonical(asked)
        assert call.side == side
    for call in reversed(calls):  # in any order
        assert canonical(call.sent()) == canonical(sent[call.number][0])
        holds(call, replies.get(call.number))
    breaks_are_told(calls)


def holds(call: Any, reply: Reply | None) -> None:
    if reply is None:
        assert (call.end, call.message, call.prompt_ids()) == (UNFINISHED, None, None)
        return
    assert (call.end, call.finish_reason, call.reply["status"]) == (reply.end, reply.finish_reason, reply.status)
    assert canonical(call.message) == canonical(reply.message)
    assert canonical(call.reply["usage"]) == canonical(reply.usage)
    assert call.reply["error"] == reply.error
    assert listed(call.prompt_ids()) == reply.prompt_ids
    assert listed(call.response_ids) == reply.response_ids
    assert call.logprobs == reply.logprobs


def listed(ids: Any) -> list[int] | None:
    return None if ids is None else list(ids)


def breaks_are_told(calls: list[Any]) -> None:
    """Found by comparing, for calls that were answered one after the other."""
    tips: dict[int, list[int]] = {}
    for call in calls:
        prompt = listed(call.prompt_ids())
        if prompt is None:
            assert call.prefix_break is None
            continue
        before = tips.get(call.branch)
        assert call.prefix_break == (before is not None and prompt[: len(before)] != before)
        if call.answered and call.response_ids is not None:
            tips[call.branch] = prompt + list(call.response_ids)
