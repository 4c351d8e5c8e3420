"""A chat completion as the message that Anthropic's clients read."""

from typing import Any

import pytest

from rolloutgen.gateway.anthropic import from_chat

Answer = dict[str, Any]


def answered(finish: str | None = "stop", stop: Any = None, usage: Any = None, **message: Any) -> Answer:
    choice = {"index": 0, "finish_reason": finish, "stop_reason": stop, "message": {"role": "assistant", **message}}
    return {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": usage}


def tool(arguments: str, number: int = 1) -> Answer:
    return {"id": f"call_{number}", "type": "function", "function": {"name": "Bash", "arguments": arguments}}


def test_thoughts_text_and_calls() -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}}
    calls = [tool('{"command": "ls"}'), tool("", 2)]
    answer = answered("tool_calls", usage=usage, reasoning="hm", content="I look.", tool_calls=calls)
    assert from_chat(answer, "claude") == {
        "id": "chatcmpl-1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "unsigned"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "call_1", "name": "Bash", "input": {"command": "ls"}},
            {"type": "tool_use", "id": "call_2", "name": "Bash", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 36,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 64,
            "output_tokens": 7,
        },
    }


def test_an_empty_answer_has_a_first_block() -> None:
    for content in (None, ""):
        assert from_chat(answered(content=content), "m")["content"] == [{"type": "text", "text": ""}]


@pytest.mark.parametrize(
    ("answer", "reason", "sequence"),
    [
        (answered("stop", content="x"), "end_turn", None),
        (answered("stop", 151645, content="x"), "end_turn", None),
        (answered("stop", "END", content="x"), "stop_sequence", "END"),
        (answered("length", content="x"), "max_tokens", None),
        (answered("repetition", content="x"), "max_tokens", None),
        (answered(None, content="x"), "max_tokens", None),
        (answered("tool_calls", tool_calls=[tool("{}")]), "tool_use", None),
        (answered("stop", tool_calls=[tool("{}")]), "tool_use", None),
        (answered("stop", "END", tool_calls=[tool("{}")]), "tool_use", None),
        (answered("tool_calls", "END", tool_calls=[tool('{"a": "b')]), "stop_sequence", "END"),
        (answered("length", tool_calls=[tool('{"a": "b')]), "max_tokens", None),
    ],
)
def test_why_it_ended(answer: Answer, reason: str, sequence: str | None) -> None:
    message = from_chat(answer, "m")
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)


@pytest.mark.parametrize("arguments", ['{"a": "b', "ls -la", "[1]", "null", '"x"', '{"a": NaN}', "{} {}", "{" * 5000])
def test_arguments_that_are_no_object_are_wrapped(arguments: str) -> None:
    """C7: the tool refuses them and the model is told; vLLM 0.32 itself answers with a status of 500."""
    (block,) = from_chat(answered("tool_calls", tool_calls=[tool(arguments)]), "m")["content"]
    assert block["input"] == {"INVALID_JSON": arguments}
