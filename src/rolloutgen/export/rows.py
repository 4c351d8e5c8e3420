"""What a row says. All types are the same in every row of both formats of files, and never null: readers guess them.

Both formats of rows
  schema_version  of these columns: 1
  run_id          of run.json
  instance_id, trial, attempt
  branch, part    number of the conversation in the attempt, and of the stretch of it (``segments``)
  loss_mask       1: sampled by the policy in this row's calls; 0: all else, such as a scaffold's own examples
  prefix_break    true: token ids of a call in the row did not extend those of the call before it in its branch; in
                  ``messages``: rendering the row does not give the tokens that the model saw. Known only where
                  RECORD_TOKEN_IDS was 1, else false
  reward, result  the verifier's (0 where the sandbox's own limit ended the attempt without one), pass or fail
  flags           of the verdict, separated by spaces
  finish_reason   of the row's last call; ``length``: cut off at the longest answer allowed
  model, policy   name of MODEL_PATH, and a digest of all in the fingerprint that makes the policy: model and sampling
  scaffold        its name

messages
  messages        role, content, reasoning_content, tool_calls, tool_call_id, name; text, empty where there is none.
                  tool_calls is JSON: ``[{"id", "type", "function": {"name", "arguments"}}]``. loss_mask: one a message
  tools           JSON: the list that was sent with the calls, or empty

tokens
  input_ids       prompt and response as they were recorded, never tokenised again. loss_mask: one a token
  logprobs        only with RECORD_LOGPROBS=1: of the sampled tokens, 0 for all others
  has_logprobs    only with it too: false where they were not recorded
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rolloutgen.export.segments import Joins, Segment, joins_as_messages, joins_as_tokens
from rolloutgen.transcript.echo import reasoning_of, text_of
from rolloutgen.transcript.lines import Message, encode

SCHEMA_VERSION: Final = 1
MESSAGE_FIELDS: Final = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")

type Row = dict[str, Any]


def messages_row(segment: Segment) -> Row | None:
    """None: nothing in it was sampled whole, or it is no chat."""
    conversation = segment.leaf.conversation()
    mask = [0] * len(conversation)
    for place, call in enumerate(segment.calls):
        if call.messages() is None:
            return None
        if place or not call.continues:  # what a scaffold began is not the policy's
            mask[len(call.conversation()) - 1] = 1
    if not any(mask) or not all(map(_is_text, conversation)):
        return None
    return {
        "messages": [_message(each) for each in conversation],
        "tools": "" if segment.leaf.tools is None else _json(segment.leaf.tools),
        "loss_mask": mask,
    }


def tokens_row(segment: Segment) -> Row | None:
    """None: ids were not recorded, or nothing was sampled."""
    leaf = segment.leaf
    prompt, response = leaf.prompt_ids(), leaf.response_ids
    if prompt is None or not response:
        return None
    ids = [*prompt, *response]
    mask, logprobs, complete = [0] * len(ids), [0.0] * len(ids), True
    for call in segment.calls:
        begin, sampled = len(call.prompt_ids() or ()), call.response_ids or ()
        mask[begin : begin + len(sampled)] = [1] * len(sampled)
        known = call.logprobs if call.logprobs is not None and len(call.logprobs) == len(sampled) else None
        complete = complete and known is not None and None not in known
        if complete and known is not None:
            logprobs[begin : begin + len(sampled)] = known
    if not complete:
        logprobs = [0.0] * len(ids)
    return {"input_ids": ids, "loss_mask": mask, "logprobs": logprobs, "has_logprobs": complete}


FORMATS: Final[Mapping[str, tuple[Joins, Callable[[Segment], Row | None]]]] = {
    "messages": (joins_as_messages, messages_row),
    "tokens": (joins_as_tokens, tokens_row),
}


def plain_text(text: str) -> str:
    """Text that UTF-8 lacks (half a surrogate pair) gets escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _message(message: Message) -> dict[str, str]:
    calls = message.get("tool_calls")
    return {
        "role": _text(message.get("role")),
        "content": plain_text(text_of(message)),
        "reasoning_content": plain_text(reasoning_of(message)),
        "tool_calls": _json(calls) if calls else "",
        "tool_call_id": _text(message.get("tool_call_id")),
        "name": _text(message.get("name")),
    }


def _is_text(message: Message) -> bool:
    """Whether its content is text alone."""
    content = message.get("content")
    parts: Sequence[Any] = content if isinstance(content, list) else ()
    return all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in parts)


def _text(value: Any) -> str:
    return plain_text(value) if isinstance(value, str) else ""


def _json(value: Any) -> str:
    return encode(value).decode().strip()
