"""The ends of an attempt's conversations: with which of them does a call go on?

A branch is a conversation that grows; its tip is its last call. A call that holds what the tip sent and what the model
replied goes on with the branch. Any other begins a new one: history rewritten or condensed, a reply thrown away, a
second agent, a side call. At most 64 conversations are followed at a time, and 8 MiB of prompts: those that were not
heard of for longest are forgotten, and would go on as new branches.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rolloutgen.transcript.echo import Echo, completion_of, continued, echo, is_empty
from rolloutgen.transcript.lines import Message
from rolloutgen.transcript.prefix import common_prefix
from rolloutgen.transcript.token_ids import TokenIds

WIDTH: Final = 4
"""Bytes of one number."""
_TIPS_MAX: Final = 64
_BYTES_MAX: Final = 8 << 20
_NEAR: Final = 16
"""Tips that are looked at for what a new branch shares with an older one."""


@dataclass(frozen=True, slots=True)
class Ids:
    """Token ids of a call's prompt and response."""

    call: int
    ids: TokenIds


@dataclass(slots=True, kw_only=True)
class Tip:
    """The last call of a branch.

    ``sent``: the numbers of its messages, four bytes each, or its prompt, where that is a text. ``beginning``: the
    message that the model was to continue; ``stops``: where it was to stop. ``ids``: the last that are known of its
    branch, or (not ``own_ids``) of the call that a new branch left. After its end: ``reply`` is the number of the
    reply's message, or its text; ``said`` the whole message, where a scaffold must send something of it back.
    """

    call: int
    branch: int
    side: bool
    sent: bytes | str
    beginning: Message | None = None
    stops: Sequence[str] = ()
    ids: Ids | None = None
    own_ids: bool = False
    ended: bool = False
    answered: bool = False
    reply: bytes | str = b""
    said: Message | None = None

    def end(self, message: Message | None, number: int | None, *, answered: bool) -> None:
        """The call has ended, with ``message`` (its ``number``: None without one)."""
        self.ended, self.answered = True, answered
        if message is None or number is None:
            return
        if isinstance(self.sent, str):
            self.reply = completion_of(message)
            return
        self.reply = number.to_bytes(WIDTH, sys.byteorder)
        said = dict(message) if self.beginning is None else continued(self.beginning, message)
        self.said = None if is_empty(said) else said

    @property
    def whole(self) -> bytes | str:
        """What was sent and the reply after it."""
        if isinstance(self.sent, str):
            return self.sent + self.reply if isinstance(self.reply, str) else self.sent
        return self.sent + self.reply if isinstance(self.reply, bytes) else self.sent

    @property
    def fixed(self) -> int:
        """How much of ``sent`` a call must repeat that goes on with this one."""
        return len(self.sent) - (0 if self.beginning is None else WIDTH)

    @property
    def weight(self) -> int:
        return len(self.sent) + (len(self.ids.ids) if self.ids else 0)

    def leads_to(self, sent: bytes | str, messages: Sequence[Message]) -> int:
        """How surely a call goes on with this one (0: it does not)."""
        if not self.ended:
            return 0
        if isinstance(sent, str):
            return self._text_leads_to(sent)
        if not isinstance(self.sent, bytes) or not sent.startswith(self.sent[: self.fixed]):
            return 0
        following = messages[self.fixed // WIDTH :]
        if following and self.said is not None:
            if self.beginning is None and sent[self.fixed : self.fixed + WIDTH] == self.reply:
                return Echo.SAME + 1
            if known := echo(following[0], self.said, self.stops):
                return known
        is_lost = self.said is None or not self.answered
        return int(is_lost and sent.startswith(self.sent))

    def _text_leads_to(self, sent: str) -> int:
        if not isinstance(self.sent, str) or not sent.startswith(self.sent):
            return 0
        assert isinstance(self.whole, str)
        return Echo.SAME if sent.startswith(self.whole) else int(not self.answered)

    def shared(self, sent: bytes | str) -> int:
        """How many messages (characters of a text) both begin with."""
        whole = self.whole
        if isinstance(sent, str):
            return common_prefix(whole, sent) if isinstance(whole, str) else 0
        return common_prefix(whole, sent) // WIDTH if isinstance(whole, bytes) else 0


class Tips:
    """The tips of one attempt, those that were heard of last at the end."""

    def __init__(self) -> None:
        self._tips: dict[int, Tip] = {}

    def before(self, sent: bytes | str, messages: Sequence[Message], side: bool) -> Tip | None:
        """The tip with which a call goes on; side calls and the agent's own keep to themselves."""
        ranked = ((tip.leads_to(sent, messages), tip.fixed, tip) for tip in self._latest() if tip.side == side)
        rank, _, tip = max(ranked, key=lambda each: each[:2], default=(0, 0, None))
        return tip if rank else None

    def nearest(self, sent: bytes | str) -> tuple[Tip, int] | None:
        """The tip that a new branch shares most with, and how much; None: there are no tips."""
        near = [(tip, tip.shared(sent)) for tip, _ in zip(self._latest(), range(_NEAR), strict=False)]
        return max(near, key=lambda each: each[1]) if near else None

    def put(self, tip: Tip) -> None:
        """The new end of its branch; also after it has grown."""
        self._tips.pop(tip.branch, None)
        self._tips[tip.branch] = tip
        weight = sum(each.weight for each in self._tips.values())
        while len(self._tips) > _TIPS_MAX or (weight > _BYTES_MAX and len(self._tips) > 1):
            weight -= self._tips.pop(next(iter(self._tips))).weight

    def _latest(self) -> Iterator[Tip]:
        return reversed(self._tips.values())
