"""The policy that is measured is the policy that will train: what of a scaffold's request reaches vLLM (A13).

An allow-list of fields goes through: what is asked, and where the answer stops. Everything that shapes the sampling is
the run's own, and every other field stays here. Forced decoding is one of them: ``tool_choice`` that names or requires
a tool becomes ``auto``, and a tool's ``strict`` and ``parallel_tool_calls`` of false are taken off: vLLM would sample
from a grammar then (seen in 0.32).
With SAMPLING_PASSTHROUGH=1 the sampling is the scaffold's; what touches the server rather than the sampling still
stays here. What changes here what a call carries raises ``scaffold.PINS_VERSION``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rolloutgen.settings import Settings

_STOPS: Final = ("stop", "stop_token_ids", "include_stop_str_in_output")
_CHAT: Final = ("messages", "continue_final_message", "add_generation_prompt", *_STOPS)
_COMPLETION: Final = ("prompt", "add_special_tokens", *_STOPS)
_WITH_TOOLS: Final = ("tools", "tool_choice", "parallel_tool_calls")
_SAMPLING: Final = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("length_penalty", "seed", "max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos", "logit_bias"),
    *("bad_words", "allowed_token_ids", "response_format", "structured_outputs", "skip_special_tokens"),
    *("spaces_between_special_tokens", "thinking_token_budget", "repetition_detection"),
)
_TEMPLATE: Final = ("reasoning_effort", "chat_template_kwargs")
_CONTENT: Final = frozenset({"messages", "prompt", "tools", "system"})
_LIMITS: Final = ("max_tokens", "max_completion_tokens")
_TOP_LOGPROBS_MAX: Final = 20
"""vLLM's own limit, unless it is told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """What every request of a run carries. ``template`` shapes the prompt of chats, ``sampling`` the answer."""

    model: str
    max_tokens: int
    sampling: Mapping[str, Any]
    template: Mapping[str, Any] = field(default_factory=dict)
    passthrough: bool = False
    token_ids: bool = True
    logprobs: bool = False

    @classmethod
    def of(cls, settings: Settings) -> "Pins":
        """Those of a run that asks a model."""
        policy = settings.policy
        template = {"reasoning_effort": policy.reasoning_effort, "chat_template_kwargs": policy.chat_template_kwargs}
        return cls(
            model=policy.served_model_name,
            max_tokens=policy.max_response_len,
            sampling={
                "temperature": policy.temperature,
                "top_p": policy.top_p,
                "top_k": policy.top_k,
                "min_p": policy.min_p,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "repetition_penalty": 1.0,
            },
            template={name: value for name, value in template.items() if value is not None},
            passthrough=policy.sampling_passthrough,
            token_ids=settings.record_token_ids,
            logprobs=settings.record_logprobs,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What of our own fields the scaffold asked for itself, and gets to see: ``usage`` at the end of a stream."""

    usage: bool
    token_ids: bool
    logprobs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """``sent`` goes to vLLM. ``asked`` is what the scaffold said beside the conversation, word for word."""

    sent: Mapping[str, Any]
    asked: Mapping[str, Any]
    shown: Shown

    @property
    def stream(self) -> bool:
        return bool(self.sent["stream"])

    def asked_as(self, body: Mapping[str, Any]) -> "Pinned":
        """The same, of a scaffold that said it so (in another API)."""
        return replace(self, asked=_beside_content(body))


def pin_chat(body: Mapping[str, Any], pins: Pins) -> Pinned:
    """The chat request ``body`` (checked) as it goes to vLLM; ``body`` itself stays as it is."""
    sent = {"model": pins.model} | _taken(body, _CHAT) | _tools(body, pins)
    if pins.passthrough:
        sent |= dict(pins.template) | _taken(body, (*_SAMPLING, *_TEMPLATE))
    else:
        sent |= {**pins.sampling, **pins.template, "max_tokens": _limit(body, pins)}
    asked_logprobs = body.get("logprobs") is True
    if asked_logprobs or pins.logprobs:
        sent["logprobs"] = True
        sent["top_logprobs"] = _count(body.get("top_logprobs")) if asked_logprobs else 0
    return _pinned(body, sent, pins, logprobs=asked_logprobs)


def pin_completion(body: Mapping[str, Any], pins: Pins) -> Pinned:
    """The same for completions, whose ``logprobs`` is a number."""
    sent = {"model": pins.model} | _taken(body, _COMPLETION)
    prompt = sent["prompt"]
    if isinstance(prompt, list) and not isinstance(prompt[0], int):
        sent["prompt"] = prompt[0]
    if pins.passthrough:
        sent |= _taken(body, _SAMPLING)
    else:
        sent |= {**pins.sampling, "max_tokens": _limit(body, pins)}
    asked = body.get("logprobs")
    asked_logprobs = type(asked) is int and asked >= 0
    if asked_logprobs or pins.logprobs:
        sent["logprobs"] = _count(asked)
    return _pinned(body, sent, pins, logprobs=asked_logprobs)


def _pinned(body: Mapping[str, Any], sent: dict[str, Any], pins: Pins, *, logprobs: bool) -> Pinned:
    stream, options = body.get("stream") is True, body.get("stream_options")
    token_ids = body.get("return_token_ids") is True
    sent |= {"n": 1, "stream": stream}
    if stream:
        sent["stream_options"] = {"include_usage": True}
    if token_ids or pins.token_ids:
        sent["return_token_ids"] = True
    usage = isinstance(options, dict) and options.get("include_usage") is True
    shown = Shown(usage=usage, token_ids=token_ids, logprobs=logprobs)
    return Pinned(sent=sent, asked=_beside_content(body), shown=shown)


def _beside_content(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in _CONTENT}


def _taken(body: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """``null`` is the same as a field that is not there, and not all servers know that."""
    return {name: body[name] for name in names if body.get(name) is not None}


def _tools(body: Mapping[str, Any], pins: Pins) -> dict[str, Any]:
    """vLLM refuses an empty list, and choices where there is nothing to choose from."""
    taken = _taken(body, _WITH_TOOLS)
    if not taken.get("tools"):
        return {}
    if not pins.passthrough:
        taken["tools"] = [_unforced(tool) for tool in taken["tools"]]
        if "tool_choice" in taken and taken["tool_choice"] not in ("auto", "none"):
            taken["tool_choice"] = "auto"
        if taken.get("parallel_tool_calls") is False:
            del taken["parallel_tool_calls"]
    return taken


def _unforced(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not (isinstance(function, dict) and "strict" in function):
        return tool
    return tool | {"function": {name: value for name, value in function.items() if name != "strict"}}


def _limit(body: Mapping[str, Any], pins: Pins) -> int:
    """The lowest of MAX_RESPONSE_LEN and what the scaffold asks, where that is a number of tokens."""
    asked: list[int] = [body[name] for name in _LIMITS if type(body.get(name)) is int and body[name] > 0]
    return min([pins.max_tokens, *asked])


def _count(asked: object) -> int:
    return min(max(asked, 0), _TOP_LOGPROBS_MAX) if isinstance(asked, int) else 0
