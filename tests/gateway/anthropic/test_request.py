"""An Anthropic request as the chat body that goes to vLLM; its prompts are compared in test_real_prompts.py."""

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutgen.gateway.anthropic import from_tokenize, to_chat, to_tokenize
from rolloutgen.gateway.errors import BadRequestError

from .conversations import BASH, DEFERRED, READ, SAME, TURNS, Body, assistant, call, request, result, text, user

PIXEL = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
SHOWN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
LINKED = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}


def test_claude_codes_first_request() -> None:
    """What names the caller or the cache goes; what it asked of sampling stays for the pins to decide (A13)."""
    assert to_chat(SAME["system blocks of Claude Code"]) == {
        "model": "policy",
        "max_tokens": 64,
        "messages": [
            {"role": "system", "content": "You are Claude Code.\nYou help with software."},
            {
                "role": "user",
                "content": [text("<system-reminder>Today.</system-reminder>"), text("Fix it.")],
            },
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "Bash",
                    "description": BASH["description"],
                    "parameters": BASH["input_schema"],
                },
            },
            {"type": "function", "function": {"name": "Read", "parameters": READ["input_schema"] | {"type": "object"}}},
        ],
        "tool_choice": "auto",
        "reasoning_effort": "high",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_thoughts_calls_and_results_keep_their_order() -> None:
    messages = to_chat(request(*TURNS, tools=[BASH]))["messages"]
    assert [message["role"] for message in messages] == [
        *("user", "assistant", "tool", "assistant", "tool", "tool", "user", "assistant", "user")
    ]
    first, second = messages[1], messages[3]
    assert (first["reasoning"], first["content"]) == ("ls will do", "I look.")
    assert json.loads(first["tool_calls"][0]["function"]["arguments"]) == {"command": "ls -la", "timeout": 5}
    assert second["reasoning"] == "two files"
    assert "content" not in second
    assert [one["id"] for one in second["tool_calls"]] == ["toolu_2", "toolu_3"]
    assert "ü" in second["tool_calls"][1]["function"]["arguments"]
    assert [(m["tool_call_id"], m["content"]) for m in messages if m["role"] == "tool"] == [
        *(("toolu_1", "a.py\nb.py"), ("toolu_2", "print(1)"), ("toolu_3", ""))
    ]


def test_images_stand_with_the_user() -> None:
    """Those of tool results behind all results: vLLM would put the first one's between the two."""
    body = request(
        user([text("Look."), PIXEL, LINKED]),
        assistant(call(1), call(2)),
        user([result(1, [text("one"), PIXEL]), result(2, [LINKED, text("two")]), text("Well?")]),
    )
    linked = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    first, _, *rest = to_chat(body)["messages"]
    assert first["content"] == [text("Look."), SHOWN, linked]
    assert rest == [
        {"role": "tool", "tool_call_id": "toolu_1", "content": "one"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "two"},
        {"role": "user", "content": [SHOWN, linked]},
        {"role": "user", "content": "Well?"},
    ]


@pytest.mark.parametrize(
    ("choice", "fields"),
    [
        (None, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "Bash"}, {"tool_choice": {"type": "function", "function": {"name": "Bash"}}}),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
    ],
)
def test_tool_choice(choice: Body | None, fields: Body) -> None:
    chat = to_chat(request(user("Go."), tools=[BASH], tool_choice=choice))
    assert {key: chat.get(key) for key in ("tool_choice", "parallel_tool_calls") if key in chat} == fields


def test_no_tools_no_choice() -> None:
    """vLLM refuses an empty list of tools, and a choice without any."""
    chat = to_chat(request(user("Go."), tools=[], tool_choice={"type": "auto"}))
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & chat.keys()


def test_a_format_of_the_output_is_asked_for() -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    chat = to_chat(request(user("Title?"), output_config={"format": {"type": "json_schema", "schema": schema}}))
    assert chat["response_format"] == {"type": "json_schema", "json_schema": {"name": "json_schema", "schema": schema}}


def test_the_budget_of_thinking_is_dropped() -> None:
    assert to_chat(SAME["thinking with a budget"]) == to_chat(request(user("Go."), max_tokens=1500))
    assert to_chat(SAME["thinking switched off"])["reasoning_effort"] == "none"


def test_system_messages_in_between() -> None:
    """They keep their place; where a template wants system first, Claude Code knows the refusal by these words."""
    body = SAME["system messages in between"]
    roles = [message["role"] for message in to_chat(body)["messages"]]
    assert roles == ["system", "user", "assistant", "system", "user"]
    known = r"messages\.2: use the top-level .{0,2}system.{0,2} parameter for the initial system prompt"
    for translate in (to_chat, to_tokenize):
        with pytest.raises(BadRequestError, match=known):
            translate(body, system_first=True)
    assert to_chat(SAME["system text"], system_first=True) == to_chat(SAME["system text"])


def test_results_stand_in_the_order_of_their_calls() -> None:
    """Claude Code sends them as they come; strangers go last."""
    body = request(
        assistant(call(1), call(2), call(3)),
        user([result(9, "nine"), result(3, "three"), result(1, "one"), text("Well?"), result(2, "two")]),
    )
    assert [message.get("content") for message in to_chat(body)["messages"][1:]] == [
        *("one", "two", "three", "nine", "Well?")
    ]


def names(body: Body) -> list[str]:
    return [tool["function"]["name"] for tool in to_chat(body).get("tools", ())]


def test_deferred_tools_are_offered_once_they_are_loaded() -> None:
    """As Claude Code's ToolSearch loads them; a placeholder of its own is never shown."""
    before, after = DEFERRED
    assert names(before) == ["Bash"]
    assert names(after) == ["Bash", "Fetch"]
    assert "defer_loading" not in str(to_chat(after))
    assert to_chat(after)["messages"][2]["content"] == "[tool Fetch is loaded]"


def test_system_messages_add_and_remove_tools() -> None:
    """A change counts from where it stands on; the last one of a tool decides."""

    def changed(*changes: tuple[str, Body]) -> list[str]:
        blocks = [{"type": f"tool_{kind}", "tool": tool} for kind, tool in changes]
        messages = [user("Go."), {"role": "system", "content": [text("News."), *blocks]}]
        body = request(*messages, tools=[BASH, READ | {"defer_loading": True}])
        assert to_chat(body)["messages"][1] == {"role": "system", "content": "News."}
        return names(body)

    bash, read = ({"type": "tool_reference", "name": name} for name in ("Bash", "Read"))
    new = {"type": "tool_definition", "definition": BASH | {"name": "New"}}
    assert changed() == ["Bash"]
    assert changed(("addition", read), ("addition", new)) == ["Bash", "Read", "New"]
    assert changed(("removal", bash), ("addition", read)) == ["Read"]
    assert changed(("removal", bash), ("addition", bash)) == ["Bash"]
    for kind, tool in (("removal", new), ("addition", {"type": "x"}), ("addition", {"type": "tool_definition"})):
        with pytest.raises(BadRequestError, match=r"messages\[1\].content\[1\].tool"):
            changed((kind, tool))


def test_tokens_are_counted_with_tools_and_the_answers_beginning() -> None:
    body = {key: value for key, value in SAME["tools without a choice"].items() if key != "max_tokens"}
    counted = to_tokenize(body)
    assert counted.keys() == {"model", "messages", "tools", "add_generation_prompt"}
    assert counted["tools"] == to_chat(body)["tools"]
    assert from_tokenize({"count": 12, "max_model_len": 2048, "tokens": []}) == {"input_tokens": 12}


REFUSED: dict[str, tuple[Body, str]] = {
    "no messages": (request(), "messages: must not be empty"),
    "messages are text": ({"messages": "hi"}, "messages: expected a list, got text 'hi'"),
    "a message is text": (request("hi"), r"messages\[0\]: expected an object"),  # type: ignore[arg-type] # the point
    "unknown role": (request({"role": "tool", "content": "x"}), r"messages\[0\].role: 'tool' is none of"),
    "no role": (request({"content": "x"}), r"messages\[0\].role"),
    "content is a number": (request(user(5)), r"messages\[0\].content: expected a list, got a number 5"),
    "unknown block": (request(user([{"type": "x"}])), r"content\[0\]: a block 'x' in a user's message is not served"),
    "a document": (request(user([{"type": "document"}])), "does not support PDFs"),
    "a document as a result": (request(user([result(1, [{"type": "document"}])])), "does not support PDFs"),
    "a call by the user": (request(user([call(1)])), "'tool_use' in a user's message"),
    "a result by the assistant": (request(assistant(result(1))), "'tool_result' in an assistant's message"),
    "a search in a result": (
        request(user([result(1, [{"type": "search_result"}])])),
        r"messages\[0\].content\[0\].content\[0\]: a block 'search_result' in a tool's result",
    ),
    "a reference to nothing": (request(user([result(1, [{"type": "tool_reference"}])])), "tool_name: expected text"),
    "a change of tools by the user": (request(user([{"type": "tool_removal"}])), "'tool_removal' in a user's message"),
    "a change of tools at first": (request(user("x"), system=[{"type": "tool_removal"}]), "text blocks only"),
    "a result of no call": (request(user([{"type": "tool_result"}])), "tool_use_id: expected text, got null"),
    "a call without a name": (request(assistant(call(1) | {"name": ""})), "name: must not be empty"),
    "input is text": (request(assistant(call(1) | {"input": "ls"})), "input: expected an object, got text 'ls'"),
    "an image by file": (request(user([{"type": "image", "source": {"type": "file"}}])), "base64 or url"),
    "an image of this machine": (
        request(user([{"type": "image", "source": {"type": "url", "url": "file:///etc/passwd"}}])),
        "is no http",
    ),
    "no image": (
        request(user([{"type": "image", "source": {"type": "base64", "media_type": "text/html", "data": ""}}])),
        "media_type: must be one of image/gif",
    ),
    "an image as system": (request(user("x"), system=[PIXEL]), r"system\[0\]: a system prompt is made of text"),
    "a server's tool": (
        request(user("x"), tools=[{"type": "web_search_20250305", "name": "web_search"}]),
        r"tools\[0\]: a tool 'web_search_20250305' is run by Anthropic",
    ),
    "a tool without a schema": (
        request(user("x"), tools=[{"name": "a"}]),
        "input_schema: expected an object, got null",
    ),
    "a choice of no tool": (
        request(user("x"), tools=[BASH], tool_choice={"type": "tool", "name": "Bosh"}),
        "'Bosh' is none of the tools",
    ),
    "an unknown choice": (request(user("x"), tools=[BASH], tool_choice={"type": "some"}), "tool_choice.type"),
    "no tokens": (request(user("x"), max_tokens=0), "max_tokens: expected a number above 0, got a number 0"),
    "temperature is text": (request(user("x"), temperature="hot"), "temperature: expected a number, got text 'hot'"),
    "stop is text": (request(user("x"), stop_sequences="END"), "stop_sequences: expected a list"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_refused_by_its_place(name: str) -> None:
    body, said = REFUSED[name]
    with pytest.raises(BadRequestError, match=said) as refused:
        to_chat(body)
    assert refused.value.status == 400


def test_refusals_are_short() -> None:
    with pytest.raises(BadRequestError) as refused:
        to_chat(request(user("x"), temperature="x" * 1_000_000, tools=[]))
    assert len(str(refused.value)) < 200


def deep(levels: int) -> Body:
    inner: Body = {}
    for _ in range(levels):
        inner = {"a": inner}
    return inner


@pytest.mark.parametrize("levels", [500, 1000])
def test_what_orjson_reads_but_cannot_write_is_refused(levels: int) -> None:
    for body in (
        request(user("x"), tools=[BASH | {"input_schema": deep(levels)}]),
        request(user("x"), assistant(call(1, a=deep(levels)))),
        request(user("x"), output_config={"format": {"type": "json_schema", "schema": deep(levels)}}),
    ):
        with pytest.raises(BadRequestError, match="nested too deeply"):
            to_chat(orjson.loads(json.dumps(body)))


WORDS = st.sampled_from(
    [
        *("type", "text", "role", "user", "assistant", "system", "content", "tool_use", "tool_result", "thinking"),
        *("image", "source", "base64", "url", "id", "name", "input", "tool_use_id", "messages", "tools", "schema"),
        *("tool_choice", "max_tokens", "stop_sequences", "output_config", "format", "input_schema", "disabled"),
        *("tool_reference", "tool_addition", "tool_removal", "tool_definition", "tool_name", "tool", "definition"),
    ]
)
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=6),
    max_leaves=30,
)
BLOCKS = st.lists(st.fixed_dictionaries({"type": WORDS}, optional={"text": JSON, "source": JSON, "content": JSON}))
MESSAGES = st.lists(st.fixed_dictionaries({"role": WORDS, "content": BLOCKS | JSON}), max_size=4)
FIELDS = ("system", "tools", "tool_choice", "max_tokens", "temperature", "stop_sequences", "output_config", "thinking")


@settings(deadline=None)
@given(st.fixed_dictionaries({"messages": MESSAGES | JSON}, optional=dict.fromkeys(FIELDS, JSON)))
def test_anything_is_translated_or_refused(body: Body) -> None:
    """No request makes it fail otherwise, and what comes out can be sent."""
    try:
        chat = to_chat(body)
    except BadRequestError:
        return
    assert chat["messages"]
    orjson.dumps(chat)
