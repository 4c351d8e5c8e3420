"""Which calls of an attempt make up one row: a stretch of a branch in which each call takes up the reply before it.

A row trains what was sampled in its own calls, in the context in which it was sampled. So everything that the policy
said is trained exactly once over all rows of an attempt, and never with another text or other tokens around it than
the model saw. Where a scaffold changed a reply before it sent it back (thoughts taken out, text cut), or where the
token ids of a prompt do not extend those before it, the next row begins.

Left out: side calls (titles, condensers: prompts of the scaffold's own making, of which the reward says nothing), and
calls without an answer (aborted, refused, failed, cut off by a kill): half a message would teach to stop there.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rolloutgen.transcript.echo import Echo, echo
from rolloutgen.transcript.reader import Call, branches

type Joins = Callable[[Call, Call], bool]


@dataclass(frozen=True, slots=True)
class Segment:
    """``calls`` of one ``branch``, its ``part``-th stretch (0, 1, ...)."""

    branch: int
    part: int
    calls: list[Call]

    @property
    def leaf(self) -> Call:
        return self.calls[-1]

    @property
    def prefix_break(self) -> bool:
        """Whether the token ids of a call in it are known not to extend those of the call before it in the branch."""
        return any(call.prefix_break for call in self.calls)


def segments(calls: Iterable[Call], joins: Joins) -> Iterator[Segment]:
    """``joins(one, next)``: whether the next answered call of a branch goes on in the same row."""
    for branch in branches(calls):
        if branch.side:
            continue
        part: list[Call] = []
        number = 0
        for call in branch.calls:
            if not call.answered or call.message is None:
                continue
            if part and not joins(part[-1], call):
                yield Segment(branch.number, number, part)
                part, number = [], number + 1
            part.append(call)
        if part:
            yield Segment(branch.number, number, part)


def joins_as_messages(one: Call, following: Call) -> bool:
    """The reply came back as it was sampled, and the tools are the same."""
    said, messages = one.said(), following.messages()
    if said is None or messages is None or one.tools != following.tools:
        return False
    at = len(one.conversation()) - 1
    return len(messages) > at and echo(messages[at], said, one.stops) is Echo.SAME


def joins_as_tokens(one: Call, following: Call) -> bool:
    """The prompt's ids extend prompt and response."""
    before, response, prompt = one.prompt_ids(), one.response_ids, following.prompt_ids()
    if before is None or response is None or prompt is None:
        return False
    whole = before + response
    return prompt[: len(whole)] == whole
