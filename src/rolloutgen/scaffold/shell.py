"""The scaffold ``shell``: a loop outside the sandbox; it asks the model for one shell command at a time and runs it."""

from typing import Any, Final

from rolloutgen.errors import CommandLostError
from rolloutgen.models import ModelEndpoint
from rolloutgen.outcomes import Flag
from rolloutgen.sandbox.base import ExecResult, unrunnable
from rolloutgen.scaffold import VERSIONS
from rolloutgen.scaffold.base import State, Workspace
from rolloutgen.scaffold.commands import LINE, closing, command_of, is_done, unclosed
from rolloutgen.scaffold.model import ContextExceededError, ModelClient, Reply
from rolloutgen.scaffold.prompt import CUT, NOT_RUN, observation, opening
from rolloutgen.settings import Policy, Settings
from rolloutgen.transcript.lines import SCHEMA_VERSION, Message, Transcript

_COMMAND_SHARE: Final = 0.2
_COMMAND_MAX_SEC: Final = 300.0
"""One command may take a fifth of the agent's limit, and no more than this: a hung one must leave time to recover."""
_OUTPUT_MAX_CHARS: Final = 10_000


class Shell:
    """Stateless between attempts, but for the connections to the model server."""

    name = "shell"
    version = VERSIONS["shell"]

    def __init__(self, client: ModelClient, policy: Policy) -> None:
        self._client = client
        self._policy = policy
        self._output_chars = max(400, min(_OUTPUT_MAX_CHARS, policy.vllm_max_model_len // 2))

    @classmethod
    def build(cls, settings: Settings, endpoint: ModelEndpoint) -> "Shell":
        policy = settings.policy
        return cls(ModelClient(endpoint, policy, settings.n_concurrent), policy)

    async def close(self) -> None:
        await self._client.close()

    async def run(self, instruction: str, workspace: Workspace, transcript: Transcript, state: State) -> None:
        """See ``Scaffold.run``. How it ended is in ``state.ending``."""
        state.turns = 0
        messages = opening(instruction)
        transcript.write(
            "start",
            schema_version=SCHEMA_VERSION,
            scaffold=self.name,
            scaffold_version=self.version,
            model=self._client.parameters["model"],
            request=dict(self._client.parameters),
            messages=messages,
        )
        while not state.ending:
            state.ending = await self._turn(messages, workspace, transcript, state)
            await transcript.sync()

    async def _turn(self, messages: list[Message], workspace: Workspace, transcript: Transcript, state: State) -> str:
        """One command, from the question to its result. Returns how the attempt ended ('': it goes on)."""
        if self._is_out_of_turns(state):
            return _end(state, Flag.MAX_TURNS)
        turn = (state.turns or 0) + 1
        try:
            answer = await self._answer(messages, transcript, state)
        except ContextExceededError:
            return _end(state, Flag.CONTEXT_EXCEEDED)
        if answer is None:
            return "done"
        command, cut = answer
        if cut and cut.full:
            return _end(state, Flag.CONTEXT_EXCEEDED)
        fields: dict[str, Any] = {}
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
            told, fields = observation(result, limit_sec, self._output_chars), _fields(result)
        messages.append(told)
        transcript.write("observation", turn=turn, messages=[told], **fields)
        return ""

    async def _answer(
        self, messages: list[Message], transcript: Transcript, state: State
    ) -> tuple[str, Reply | None] | None:
        """The next command, and the reply that was cut off, if one was (None: the model says that it is done).

        Appends the answer to ``messages`` and writes it, even where the call that would have completed it fails.
        """
        turn, text = (state.turns or 0) + 1, ""
        calls: list[Any] = []
        stop: str | None = LINE
        reply: Reply | None = None
        try:
            while stop is not None and not self._is_out_of_turns(state):
                asked = [*messages, {"role": "assistant", "content": text}] if calls else messages
                reply = await self._client.complete(asked, stop, state, continues=bool(calls))
                state.turns = (state.turns or 0) + 1
                calls.append(reply.call)
                text += reply.text
                if reply.finish_reason == "length":
                    break
                text += closing(stop)
                stop = unclosed(text)
        finally:
            command = command_of(text)
            if calls:
                said = {"role": "assistant", "content": text}
                messages.append(said)
                transcript.write("reply", turn=turn, calls=calls, command=command, messages=[said])
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


def _fields(result: ExecResult) -> dict[str, Any]:
    return {"exit_status": result.exit_status, "timed_out": result.timed_out, "truncated": result.truncated}
