"""Before the first attempt: does the model speak, does temperature act, are thoughts and tool calls taken out of text?

Straight to vLLM, nothing pinned: what is asked here is what the checks need, whatever the run's sampling is.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from rolloutgen.errors import Finding, Level, RolloutgenError
from rolloutgen.gateway import markup
from rolloutgen.gateway.gibberish import gibberish

_SUBJECT: Final = "canary"
_QUESTIONS: Final = ("What is the capital of France? Answer in one sentence.", "Write one sentence about the sea.")
_STORY: Final = "Write the first sentence of a story."
_ERRAND: Final = "Which files are in the current folder? Find out with the tool run_command."
_TOOL: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": "run_command",
        "description": "Run a shell command and return its output.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "the command"}},
            "required": ["command"],
        },
    },
}
_PLAIN_TOKENS: Final = 64
_SAMPLE_TOKENS: Final = 32
_PAIRS: Final = 4
_THINK: Final = ("<think>", "</think>")
_OK, _ERROR = 200, 500
_SHOWN: Final = 200


class ServerLostError(RolloutgenError):
    """The server did not answer: nothing is known of the model."""


class _RefusedError(Exception):
    """It answered 4xx."""


@dataclass(frozen=True, slots=True)
class Canary:
    """``base_url`` and ``key`` are vLLM's. ``reads_thoughts``: the scaffold takes thoughts out of the text itself.

    ``tools``: the scaffold offers tools, or a parser for them is set (``parser``, empty: none); ``tool_tokens`` are the
    most of the answer in which the model should call one, ``call_is_must`` says that it is fatal where it calls none.
    """

    base_url: str
    key: str
    model_name: str
    timeout_sec: float
    reads_thoughts: bool
    tools: bool
    parser: str
    tool_tokens: int
    call_is_must: bool

    async def sing(self) -> list[Finding]:
        """All findings. Raises ServerLostError."""
        headers = {"Authorization": f"Bearer {self.key}"}
        timeout = aiohttp.ClientTimeout(total=self.timeout_sec)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            try:
                findings = [*await self._speaks(session), *await self._temperature(session)]
                return [*findings, *(await self._calls_tools(session) if self.tools else [])]
            except _RefusedError as error:
                mend = "the model must answer chat completions (has its tokenizer a chat template?)"
                return [Finding(Level.FATAL, _SUBJECT, f"the server refuses a plain request: {error}", mend=mend)]

    async def _speaks(self, session: aiohttp.ClientSession) -> list[Finding]:
        """Greedily, so that one more look tells whether the server repeats itself."""
        first = await self._greedy(session, _QUESTIONS[0])
        why = gibberish(*_said(first))
        if why and gibberish(*_said(await self._greedy(session, _QUESTIONS[1]))):
            mend = "are MODEL_PATH's weights whole, and VLLM_DTYPE and the quantization right for them?"
            shown = f"the model's answer is no text ({why}): {_said(first)[0][:_SHOWN]!r}"
            return [Finding(Level.FATAL, "MODEL_PATH", shown, mend=mend)]
        again = await self._greedy(session, _QUESTIONS[0])
        findings = [Finding(Level.OK, _SUBJECT, "the model answers in words"), *self._thoughts(first)]
        if _said(again)[0] != _said(first)[0]:
            told = "two answers at temperature 0 differ: the server's arithmetic depends on what else it computes"
            findings.append(Finding(Level.WARN, _SUBJECT, told, mend="nothing, unless you compare runs token by token"))
        return findings

    def _thoughts(self, answer: Mapping[str, Any]) -> list[Finding]:
        content = answer["message"].get("content") or ""
        if not any(mark in content for mark in _THINK):
            return []
        level = Level.WARN if self.reads_thoughts else Level.FATAL
        told = f"thoughts are left in the text of answers: {content[:_SHOWN]!r}"
        return [Finding(level, "VLLM_EXTRA_ARGS", told, mend="add --reasoning-parser with the name of this model's")]

    async def _temperature(self, session: aiohttp.ClientSession) -> list[Finding]:
        """A13: samples differ. Any pair that does is enough: a sure model may say the same thing twice."""
        for _ in range(_PAIRS):
            one, two = await asyncio.gather(*(self._sample(session) for _ in range(2)))
            if one != two:
                return [Finding(Level.OK, "TEMPERATURE", "acts: two samples at temperature 1 differ")]
        told = f"does not act: {_PAIRS} pairs of samples at temperature 1 were equal, one by one: {one[:_SHOWN]!r}"
        mend = "VLLM_EXTRA_ARGS or VLLM_ENV must not fix the sampling (seed, top_k, generation config)"
        return [Finding(Level.FATAL, "TEMPERATURE", told, mend=mend)]

    async def _calls_tools(self, session: aiohttp.ClientSession) -> list[Finding]:
        """C7: with tool_choice auto; a forced call proves nothing."""
        try:
            answer = await self._ask(
                session, _ERRAND, max_tokens=self.tool_tokens, temperature=0, tools=[_TOOL], tool_choice="auto"
            )
        except _RefusedError as error:
            told = f"the server takes no request with a tool: {error}"
            return [Finding(Level.FATAL, "TOOL_CALL_PARSER", told, mend="name vLLM's parser for this model")]
        text = str(answer["message"].get("content") or "")
        if answer["message"].get("tool_calls"):
            return [Finding(Level.OK, "TOOL_CALL_PARSER", "the model calls a tool")]
        return [self._left_in_text(text) if markup.find(text) else self._no_call(text, answer.get("finish_reason"))]

    def _left_in_text(self, text: str) -> Finding:
        told = f"the model's call of a tool is left in the text: {text[:_SHOWN]!r}"
        mend = "name vLLM's parser for this model (TOOL_CALL_PARSER)"
        return Finding(Level.FATAL, "TOOL_CALL_PARSER", f"is {self.parser or 'not set'}; {told}", mend=mend)

    def _no_call(self, text: str, reason: str | None) -> Finding:
        cut = f" (cut off after {self.tool_tokens} tokens)" if reason == "length" else ""
        told = f"the model calls no tool where it is told to{cut}: {text[:_SHOWN]!r}"
        mend = "is TOOL_CALL_PARSER that of this model, and does its chat template show tools? TOOL_CANARY=warn goes on"
        level = Level.FATAL if self.call_is_must else Level.WARN
        return Finding(level, "TOOL_CANARY", told, mend=mend)

    async def _greedy(self, session: aiohttp.ClientSession, question: str) -> Mapping[str, Any]:
        return await self._ask(session, question, max_tokens=_PLAIN_TOKENS, temperature=0, logprobs=True)

    async def _sample(self, session: aiohttp.ClientSession) -> str:
        return _said(await self._ask(session, _STORY, max_tokens=_SAMPLE_TOKENS, temperature=1))[0]

    async def _ask(self, session: aiohttp.ClientSession, question: str, **more: Any) -> Mapping[str, Any]:
        """The choice of one answer."""
        body = {"model": self.model_name, "messages": [{"role": "user", "content": question}], **more}
        try:
            async with session.post(f"{self.base_url}/chat/completions", json=body) as response:
                if response.status != _OK:
                    raise _problem(response.status, await response.text(errors="replace"))
                choice: Mapping[str, Any] = (await response.json())["choices"][0]
                _said(choice)
                return choice
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServerLostError(f"the model server does not answer the canary: {error!r}") from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ServerLostError(f"the model server's answer to the canary is no completion: {error!r}") from error


def _problem(status: int, text: str) -> Exception:
    told = f"HTTP {status}: {text.strip()[:_SHOWN]}"
    return ServerLostError(f"the model server fails the canary: {told}") if status >= _ERROR else _RefusedError(told)


def _said(choice: Mapping[str, Any]) -> tuple[str, list[float]]:
    """All text of an answer, thoughts included, and the log-probabilities of its tokens."""
    message, logprobs = choice["message"], (choice.get("logprobs") or {}).get("content") or ()
    text = "".join(str(message.get(name) or "") for name in ("reasoning", "reasoning_content", "content"))
    return text, [float(entry["logprob"]) for entry in logprobs]
