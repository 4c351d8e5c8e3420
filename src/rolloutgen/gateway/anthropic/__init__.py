"""The Anthropic Messages API, translated to and from vLLM's chat/completions: no I/O, no state beyond one answer.

A request becomes a chat body (``to_chat``), so that pins, ids, log-probabilities and the transcript are one path for
all scaffolds; the answer becomes a message (``from_chat``) or its events (``EventStream``). Bodies are taken as orjson
parsed them: no NaN, no lone surrogates. The prompt is that of vLLM's own /v1/messages but for the differences that
tests/gateway/anthropic/conversations.py names (and the order of images, which text models cannot show).

Sources: platform.claude.com/docs (Messages API, streaming, errors, fine-grained tool streaming), vLLM 0.32.0's own
translation, and what Claude Code 2.1.332 sends and accepts.
"""

from rolloutgen.gateway.anthropic.counting import from_tokenize, to_tokenize
from rolloutgen.gateway.anthropic.errors import error_body
from rolloutgen.gateway.anthropic.events import PING, EventStream
from rolloutgen.gateway.anthropic.request import INLINE_SYSTEM_PROBE, to_chat
from rolloutgen.gateway.anthropic.response import from_chat

__all__ = [
    "INLINE_SYSTEM_PROBE",
    "PING",
    "EventStream",
    "error_body",
    "from_chat",
    "from_tokenize",
    "to_chat",
    "to_tokenize",
]
