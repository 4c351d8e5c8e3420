"""A13: what of a scaffold's request reaches vLLM."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutgen.gateway.bodies import check_chat, check_completion
from rolloutgen.gateway.errors import BadRequestError
from rolloutgen.gateway.pins import Pins, Shown, pin_chat, pin_completion
from texts import make_settings

SAMPLING = {
    "temperature": 0.7,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
PINS = Pins(model="policy", max_tokens=100, sampling=SAMPLING)
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "ls", "parameters": {}, "strict": True}}

KNOWN = (
    *("model", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "length_penalty", "n", "best_of", "max_tokens", "max_completion_tokens", "min_tokens"),
    *("seed", "logit_bias", "bad_words", "ignore_eos", "allowed_token_ids", "use_beam_search", "watermarking"),
    *("response_format", "structured_outputs", "guided_json", "chat_template", "chat_template_kwargs"),
    *("reasoning_effort", "include_reasoning", "thinking_token_budget", "echo", "suffix", "documents"),
    *("prompt_logprobs", "logprobs", "top_logprobs", "logprob_token_ids", "return_token_ids", "return_prompt_text"),
    *("return_tokens_as_token_ids", "priority", "request_id", "session_id", "cache_salt", "kv_transfer_params"),
    *("ec_transfer_params", "vllm_xargs", "mm_processor_kwargs", "media_io_kwargs", "prompt_embeds", "user"),
    *("truncate_prompt_tokens", "skip_special_tokens", "repetition_detection", "stream_interval", "stream_options"),
    *("stop", "stop_token_ids", "tool_choice", "parallel_tool_calls", "functions", "function_call"),
)
"""Whatever vLLM 0.32, older ones and OpenAI's API know."""
ALLOWED = {
    *("model", "messages", "prompt", "n", "max_tokens", "stream", "stream_options", "return_token_ids", "logprobs"),
    *("top_logprobs", "stop", "stop_token_ids", "include_stop_str_in_output", "continue_final_message", "tools"),
    *("tool_choice", "parallel_tool_calls", "add_generation_prompt", "add_special_tokens", *SAMPLING),
}
"""All that may ever reach vLLM while sampling is pinned, without settings for the template."""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
hostile = st.dictionaries(st.sampled_from(KNOWN) | st.text(max_size=12), json_values, max_size=12)


def assert_pinned(sent: dict[str, Any]) -> None:
    assert {name: sent[name] for name in SAMPLING} == SAMPLING
    assert sent["model"] == "policy"
    assert sent["n"] == 1
    assert 1 <= sent["max_tokens"] <= 100
    assert sent["return_token_ids"] is True
    assert set(sent) <= ALLOWED
    assert sent.get("tool_choice", "auto") in {"auto", "none"}
    assert sent.get("stream_options") == ({"include_usage": True} if sent["stream"] else None)


@given(hostile)
def test_every_chat_carries_exactly_the_pins(fields: dict[str, Any]) -> None:
    body = {**fields, "messages": HELLO, "stream": bool(fields.get("stream")), "tools": [TOOL]}
    before = orjson.dumps(body)
    check_chat(body)
    pinned = pin_chat(body, PINS)
    assert_pinned(dict(pinned.sent))
    assert pinned.sent["messages"] == HELLO
    assert {"messages": HELLO, "tools": [TOOL], **pinned.asked} == body
    assert orjson.dumps(body) == before


@given(hostile)
def test_every_completion_carries_exactly_the_pins(fields: dict[str, Any]) -> None:
    body = {**fields, "prompt": "once", "stream": bool(fields.get("stream"))}
    check_completion(body)
    pinned = pin_completion(body, PINS)
    assert_pinned(dict(pinned.sent))
    assert pinned.sent["prompt"] == "once"


@given(json_values)
def test_no_body_is_a_surprise(value: Any) -> None:
    """What is let through can be pinned; all else is refused."""
    for name, check, pin in (("messages", check_chat, pin_chat), ("prompt", check_completion, pin_completion)):
        for body in ({name: value}, {name: [value]}, {name: HELLO, "tools": value}, {name: HELLO, "stream": value}):
            try:
                check(body)
            except BadRequestError:
                continue
            assert_pinned(dict(pin(body, PINS).sent))


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({}, 100),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 8}, 8),
        ({"max_tokens": 7, "max_completion_tokens": 8}, 7),
        ({"max_tokens": 101}, 100),
        ({"max_tokens": 0}, 100),
        ({"max_tokens": "7"}, 100),
        ({"max_tokens": True}, 100),
    ],
)
def test_answers_are_no_longer_than_the_runs(asked: dict[str, Any], sent: int) -> None:
    """MAX_RESPONSE_LEN is the cap, and what is sent where nothing sensible is asked."""
    pinned = pin_chat({"messages": HELLO, **asked}, PINS)
    assert pinned.sent["max_tokens"] == sent
    assert "max_completion_tokens" not in pinned.sent


def test_tools_go_through_but_nothing_is_forced() -> None:
    """A grammar would be another policy: tool_choice and ``strict`` ask vLLM for one."""
    body = {"messages": HELLO, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    sent = pin_chat(body, PINS).sent
    assert sent["tools"] == [{"type": "function", "function": {"name": "ls", "parameters": {}}}]
    assert sent["tool_choice"] == "auto"
    assert "parallel_tool_calls" not in sent, "the number of calls would be held by a grammar"
    named = {**body, "tool_choice": {"type": "function", "function": {"name": "ls"}}}
    assert pin_chat(named, PINS).sent["tool_choice"] == "auto"
    assert pin_chat({**body, "tool_choice": "none"}, PINS).sent["tool_choice"] == "none"
    assert TOOL["function"] == {"name": "ls", "parameters": {}, "strict": True}


def test_a_choice_of_no_tools_is_not_sent() -> None:
    """vLLM refuses an empty list of tools, and a choice from nothing."""
    sent = pin_chat({"messages": HELLO, "tools": [], "tool_choice": "auto"}, PINS).sent
    assert not {"tools", "tool_choice"} & set(sent)


def test_the_template_is_the_runs_own() -> None:
    """Scaffolds send reasoning_effort high unasked, and vLLM turns it into enable_thinking."""
    asked = {"messages": HELLO, "reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": True}}
    assert not {"reasoning_effort", "chat_template_kwargs"} & set(pin_chat(asked, PINS).sent)
    template = {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}
    pins = Pins(model="policy", max_tokens=100, sampling=SAMPLING, template=template)
    pinned = pin_chat(asked, pins)
    assert {name: pinned.sent[name] for name in template} == template
    assert pinned.asked["reasoning_effort"] == "high"
    assert not set(template) & set(pin_completion({"prompt": "once"}, pins).sent)


def test_what_is_recorded_is_asked_for_and_shown_to_those_who_ask() -> None:
    pins = Pins(model="policy", max_tokens=100, sampling=SAMPLING, token_ids=False, logprobs=True)
    plain = pin_chat({"messages": HELLO}, pins)
    assert plain.sent["logprobs"] is True
    assert plain.sent["top_logprobs"] == 0
    assert "return_token_ids" not in plain.sent
    assert plain.shown == Shown(usage=False, token_ids=False, logprobs=False)
    curious = {"messages": HELLO, "logprobs": True, "top_logprobs": 99, "return_token_ids": True, "stream": True}
    asked = pin_chat({**curious, "stream_options": {"include_usage": True}}, pins)
    assert (asked.sent["top_logprobs"], asked.sent["return_token_ids"]) == (20, True)
    assert asked.shown == Shown(usage=True, token_ids=True, logprobs=True)
    assert pin_completion({"prompt": "once"}, pins).sent["logprobs"] == 0


def test_passthrough_leaves_the_sampling_and_keeps_the_server_ours() -> None:
    """SAMPLING_PASSTHROUGH=1."""
    pins = Pins(model="policy", max_tokens=100, sampling=SAMPLING, passthrough=True)
    sampling = {"temperature": 0.1, "seed": 3, "logit_bias": {"5": -100}, "max_tokens": 5000, "ignore_eos": True}
    choice = {"tools": [TOOL], "tool_choice": "required", "response_format": {"type": "json_object"}}
    ours = {"model": "x", "n": 4, "priority": -5, "kv_transfer_params": {}, "chat_template": "{{ x }}"}
    body = {"messages": HELLO, **sampling, **choice, **ours}
    expected = {"model": "policy", "messages": HELLO, "n": 1, "stream": False, "return_token_ids": True}
    assert pin_chat(body, pins).sent == {**expected, **sampling, **choice}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}},
        {"image_url": "https://example.org/a.png"},
        {"type": "video_url", "video_url": {"url": "file:///etc/passwd"}},
        {"type": "image_url", "image_url": None},
    ],
)
def test_links_are_not_followed(part: dict[str, Any]) -> None:
    """vLLM would fetch them, from where the sandbox may not reach."""
    with pytest.raises(BadRequestError, match="links are not followed"):
        check_chat({"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]})


def test_media_that_come_along_are_let_through() -> None:
    parts = [
        {"type": "text", "text": "see http://example.org"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
    ]
    check_chat({"messages": [{"role": "user", "content": parts}]})


def test_one_prompt_alone() -> None:
    """A list of prompts would make several answers, and no transcript could say which is the agent's."""
    assert pin_completion({"prompt": ["once"]}, PINS).sent["prompt"] == "once"
    assert pin_completion({"prompt": [[1, 2]]}, PINS).sent["prompt"] == [1, 2]
    for prompts in (["a", "b"], [[1], [2]], [], [True], [-1], None, 5, [1, "a"]):
        with pytest.raises(BadRequestError, match="one text, or one list"):
            check_completion({"prompt": prompts})


def test_they_come_from_the_settings() -> None:
    texts = {"TEMPERATURE": "0.6", "TOP_P": "0.9", "TOP_K": "20", "MIN_P": "0.05", "REASONING_EFFORT": "low"}
    more = {"CHAT_TEMPLATE_KWARGS": '{"enable_thinking": false}', "RECORD_LOGPROBS": "1", "RECORD_TOKEN_IDS": "0"}
    pins = Pins.of(make_settings(**texts, **more))
    assert pins == Pins(
        model="policy",
        max_tokens=64,
        sampling={**SAMPLING, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05},
        template={"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
        token_ids=False,
        logprobs=True,
    )
