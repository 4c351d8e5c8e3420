"""The scaffold ``shell``: a loop outside the sandbox; it asks the model for one shell command at a time and runs it."""

from typing import Final

from rolloutgen.errors import CommandLostError
from rolloutgen.models import ModelEndpoint
from rolloutgen.outcomes import Flag
from rolloutgen.sandbox.base import unrunnable
from rolloutgen.scaffold import VERSIONS
from rolloutgen.scaffold.base import State, Workspace
from rolloutgen.scaffold.commands import LINE, closing, command_of, is_done, unclosed
from rolloutgen.scaffold.model import ContextExceededError, Message, ModelClient, Reply
from rolloutgen.scaffold.prompt import CUT, NOT_RUN, observation, opening
from rolloutgen.settings import Policy, Settings

_COMMAND_SHARE: Final = 0.2
_COMMAND_MAX_SEC: Final = 300.0
"""One command may take a fifth of the agent's limit, and no more than this: a hung one must leave time to recover."""
_OUTPUT_MAX_CHARS: Final = 10_000


class Shell:
    """Stateless between attempts, but for the connections to the gateway."""

    name = "shell"
    version = VERSIONS["shell"]

    def __init__(self, client: ModelClient, policy: Policy) -> None:
        self._client = client
        self._policy = policy
        self._output_chars = max(400, min(_OUTPUT_MAX_CHARS, policy.vllm_max_model_len // 2))

    @classmethod
    def build(cls, settings: Settings) -> "Shell":
        policy = settings.policy
        return cls(ModelClient(policy, settings.n_concurrent), policy)

    async def close(self) -> None:
        await self._client.close()

    async def run(self, instruction: str, workspace: Workspace, endpoint: ModelEndpoint, state: State) -> None:
        """See ``Scaffold.run``. How it ended is in ``state.ending``."""
        state.turns = 0
        messages = opening(instruction)
        while not state.ending:
            state.ending = await self._turn(messages, workspace, endpoint, state)

    async def _turn(self, messages: list[Message], workspace: Workspace, endpoint: ModelEndpoint, state: State) -> str:
        """One command, from the question to its result. Returns how the attempt ended ('': it goes on)."""
        if self._is_out_of_turns(state):
            return _end(state, Flag.MAX_TURNS)
        try:
            answer = await self._answer(messages, endpoint, state)
        except ContextExceededError:
            return _end(state, Flag.CONTEXT_EXCEEDED)
        if answer is None:
            return "done"
        command, cut = answer
        if cut and cut.full:
            return _end(state, Flag.CONTEXT_EXCEEDED)
        why = unrunnable(command)
        if cut:
            told = {"role": "user", "content": CUT.format(tokens=self._policy.max_response_len)}
        elif why:  # the model's own doing, so no error
            told = {"role": "user", "content": NOT_RUN.format(why=why)}
        else:
            limit_sec = self._limit_sec(state)
            try:
                result = await workspace.exec(command, timeout_sec=limit_sec)
            except CommandLostError:
                return _end(state, Flag.AGENT_CRASH)
            told = observation(result, limit_sec, self._output_chars)
        messages.append(told)
        return ""

    async def _answer(
        self, messages: list[Message], endpoint: ModelEndpoint, state: State
    ) -> tuple[str, Reply | None] | None:
        """The next command, and the reply that was cut off, if one was (None: the model says that it is done).

        Appends the answer to ``messages``.
        """
        text = ""
        stop: str | None = LINE
        reply: Reply | None = None
        while stop is not None and not self._is_out_of_turns(state):
            asked = [*messages, {"role": "assistant", "content": text}] if reply else messages
            reply = await self._client.complete(endpoint, asked, stop, continues=reply is not None)
            state.turns = (state.turns or 0) + 1
            text += reply.text
            if reply.finish_reason == "length":
                break
            text += closing(stop)
            stop = unclosed(text)
        command = command_of(text)
        messages.append({"role": "assistant", "content": text})
        if reply is not None and reply.finish_reason == "length":
            return command, reply
        return None if is_done(command) else (command, None)

    def _is_out_of_turns(self, state: State) -> bool:
        return (state.turns or 0) >= self._policy.max_turns

    def _limit_sec(self, state: State) -> float:
        limit_sec = state.limit_sec
        return _COMMAND_MAX_SEC if limit_sec is None else min(_COMMAND_MAX_SEC, max(1.0, _COMMAND_SHARE * limit_sec))


def _end(state: State, flag: Flag) -> str:
    state.flags.add(flag)
    return flag.value
