"""Requests as Anthropic's clients send them, and the differences from vLLM's own translation that are meant."""

from collections.abc import Mapping
from typing import Any, Final

Body = dict[str, Any]

BASH: Final[Body] = {
    "name": "Bash",
    "description": "Runs a command; ünïcode is fine.",
    "input_schema": {
        "type": "object",
        "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}},
        "required": ["command"],
        "additionalProperties": False,
        "$schema": "https://json-schema.org/draft/2020-12/schema",
    },
}
READ: Final[Body] = {"type": "custom", "name": "Read", "input_schema": {"properties": {"path": {"type": "string"}}}}
CACHED: Final = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def text(said: str, **more: Any) -> Body:
    return {"type": "text", "text": said, **more}


def call(number: int, **wanted: Any) -> Body:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": wanted}


def result(number: int, content: Any = None, **more: Any) -> Body:
    return {
        "type": "tool_result",
        "tool_use_id": f"toolu_{number}",
        **({"content": content} if content else {}),
        **more,
    }


def thinking(said: str) -> Body:
    return {"type": "thinking", "thinking": said, "signature": "unsigned"}


def user(content: Any) -> Body:
    return {"role": "user", "content": content}


def assistant(*content: Body) -> Body:
    return {"role": "assistant", "content": list(content)}


def request(*messages: Body, **more: Any) -> Body:
    return {"model": "policy", "max_tokens": 64, "messages": list(messages), **more}


TURNS: Final = (
    user("List the files."),
    assistant(thinking("ls will do"), text("I look."), call(1, command="ls -la", timeout=5)),
    user([result(1, [text("a.py"), text("b.py")])]),
    assistant(thinking("two"), thinking(" files"), call(2, command="cat a.py"), call(3, command="echo 'ü \"q\" \\n'")),
    user([result(2, "print(1)", **CACHED), result(3, is_error=True), text("Go on.", **CACHED)]),
    assistant(text("Done.")),
    user("Thanks."),
)

SAME: Final[Mapping[str, Body]] = {
    "one turn": request(user("Hello there.")),
    "system text": request(user("Hello."), system="You are terse."),
    "system blocks of Claude Code": request(
        user([text("<system-reminder>Today.</system-reminder>"), text("Fix it.", **CACHED)]),
        system=[
            text("x-anthropic-billing-header: cc_version=2.1.332.abc; cch=12345;"),
            text("You are Claude Code.", **CACHED),
            text("\nYou help with software.", **CACHED),
        ],
        tools=[BASH | CACHED, READ],
        metadata={"user_id": "user_1"},
        context_management={"edits": []},
        output_config={"effort": "high"},
        thinking={"type": "adaptive"},
        stream=True,
    ),
    "tools without a choice": request(user("Go."), tools=[BASH, READ]),
    "a tool that must be used": request(user("Go."), tools=[BASH], tool_choice={"type": "any"}),
    "one tool by name": request(user("Go."), tools=[BASH, READ], tool_choice={"type": "tool", "name": "Read"}),
    "tools that may not be used": request(user("Go."), tools=[BASH], tool_choice={"type": "none"}),
    "one call at a time": request(
        user("Go."), tools=[BASH], tool_choice={"type": "auto", "disable_parallel_tool_use": True}
    ),
    "several turns with tools and thoughts": request(*TURNS, system="You work.", tools=[BASH]),
    "tool results behind text": request(
        *TURNS[:2], user([text("First this."), result(1, "ok"), text("Then this.")]), tools=[BASH]
    ),
    "text around a call": request(
        user("Go."), assistant(text("A"), call(1), text("B")), user([result(1)]), tools=[BASH]
    ),
    "thoughts alone": request(user("Go."), assistant(thinking("hm")), user("Well?")),
    "redacted thoughts": request(
        user("Go."), assistant({"type": "redacted_thinking", "data": "xyz"}, text("Yes.")), user("Well?")
    ),
    "nothing but redacted thoughts": request(
        user("Go."), assistant({"type": "redacted_thinking", "data": "xyz"}), user("Well?")
    ),
    "empty texts": request(user([text(""), text("Go.")]), assistant(text("")), user([text("")]), user("Well?")),
    "system messages in between": request(
        user("Go."),
        assistant(text("Yes.")),
        {"role": "system", "content": [text("Be brief."), text("Be kind.")]},
        user("Well?"),
        system="You work.",
    ),
    "the answer's beginning": request(user("Count."), assistant(text("One, two,"))),
    "thinking switched off": request(user("Go."), thinking={"type": "disabled"}),
    "thinking with a budget": request(
        user("Go."), max_tokens=1500, thinking={"type": "enabled", "budget_tokens": 1024}
    ),
    "thinking of little effort": request(user("Go."), output_config={"effort": "low"}),
    "deeply nested input": request(
        user("Go."), assistant(call(1, a=[{"b": [1.5, None, True, {"c": "</tool_call>"}]}])), user([result(1, "ok")])
    ),
    "stop sequences and sampling": request(
        user("Go."), stop_sequences=["\n", "END"], temperature=0.3, top_p=0.9, top_k=5
    ),
}
"""Name -> a request whose prompt must be vLLM's own, to the token."""

_FETCH: Final[Body] = READ | {"name": "Fetch", "defer_loading": True}
_ASKED: Final = (user("Go."), assistant(call(1)))
DEFERRED: Final = (
    request(*_ASKED, tools=[BASH, _FETCH]),
    request(*_ASKED, user([result(1, [{"type": "tool_reference", "tool_name": "Fetch"}])]), tools=[BASH, _FETCH]),
)
"""Before and after a tool is loaded that the model is not shown at first."""

DIFFERENT: Final[Mapping[str, tuple[Body, Body]]] = {
    "vLLM loses what stands behind the billing line in its block": (
        request(user("Go."), system=[text("x-anthropic-billing-header: cch=1;\nYou are terse.")]),
        request(user("Go."), system=[text("You are terse.")]),
    ),
    "vLLM shows the model a field that constrains sampling": (
        request(user("Go."), tools=[BASH | {"strict": True}]),
        request(user("Go."), tools=[BASH]),
    ),
    "vLLM leaves results in the order in which they came": (
        request(user("Go."), assistant(call(1), call(2)), user([result(2, "two"), result(1, "one")])),
        request(user("Go."), assistant(call(1), call(2)), user([result(1, "one"), result(2, "two")])),
    ),
    "vLLM shows a deferred tool before it is loaded": (DEFERRED[0], request(*_ASKED, tools=[BASH])),
    "vLLM answers a call that loads a tool with two messages, one empty": (
        DEFERRED[1],
        request(*_ASKED, user([result(1, "[tool Fetch is loaded]")]), tools=[BASH, READ | {"name": "Fetch"}]),
    ),
}
"""Name -> a request where ours differs on purpose, and the one whose prompt by vLLM is ours."""
