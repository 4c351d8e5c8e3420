"""What a client makes of an event stream, by the rules of Anthropic's documentation: one block after the other."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

Event = dict[str, Any]


def events(stream: bytes) -> Iterator[Event]:
    """The events; each is named twice, and alike."""
    assert stream.endswith(b"\n\n")
    for one in stream[:-2].split(b"\n\n"):
        name, data = one.split(b"\n")
        event = orjson.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode()
        yield event


@dataclass
class Client:
    """Puts the message together, and checks the order of the events."""

    message: Event = field(default_factory=dict)
    open: int | None = None
    stopped: bool = False

    def read(self, stream: bytes) -> Event:
        for event in events(stream):
            assert not self.stopped
            getattr(self, f"_{event['type']}")(event)
        assert self.stopped
        for block in self.message["content"]:
            if block["type"] == "tool_use":
                block["input"] = "".join(block.pop("pieces"))
        return self.message

    def _ping(self, event: Event) -> None:
        pass

    def _message_start(self, event: Event) -> None:
        assert not self.message
        self.message = event["message"]

    def _content_block_start(self, event: Event) -> None:
        assert self.open is None
        self.open = event["index"]
        assert self.open == len(self.message["content"])
        block = event["content_block"]
        self.message["content"].append(block | ({"pieces": []} if block["type"] == "tool_use" else {}))

    def _content_block_delta(self, event: Event) -> None:
        assert event["index"] == self.open
        block, delta = self.message["content"][event["index"]], event["delta"]
        match delta.pop("type"), block["type"]:
            case "input_json_delta", "tool_use":
                block["pieces"].append(delta["partial_json"])
            case ("text_delta", "text") | ("thinking_delta", "thinking") | ("signature_delta", "thinking"):
                ((key, said),) = delta.items()
                block[key] += said
            case other:
                raise AssertionError(other)

    def _content_block_stop(self, event: Event) -> None:
        assert event["index"] == self.open
        self.open = None

    def _message_delta(self, event: Event) -> None:
        assert self.open is None
        self.message |= event["delta"] | {"usage": event["usage"]}

    def _message_stop(self, event: Event) -> None:
        assert self.message["stop_reason"] is not None
        self.stopped = True
