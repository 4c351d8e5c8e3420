"""A tokenizer and a chat template small enough to reckon with: a token is a word and the blanks before it.

Ids are the same in every process. A message's ids depend on the message alone, so the prompt of a longer conversation
begins with the prompt and the response of the shorter one, as long as the assistant's message comes back whole.
"""

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

START: Final = "<|im_start|>"
END: Final = "<|im_end|>"
THINK: Final = "<think>"
THOUGHT: Final = "</think>"
TOOL: Final = "<tool_call>"
CALLED: Final = "</tool_call>"
_SPECIAL: Final = {text: number for number, text in enumerate((START, END, THINK, THOUGHT, TOOL, CALLED), start=1)}
_FIRST, _VOCABULARY = 16, 150_000
_WORD: Final = re.compile(r"\s*\S+|\s+$")
_texts: dict[int, str] = {number: text for text, number in _SPECIAL.items()}


def words(text: str) -> list[str]:
    """The tokens of ``text``; joined they are ``text``."""
    return _WORD.findall(text)


def token_id(text: str) -> int:
    """Of one token, special or not."""
    number = _SPECIAL.get(text) or _FIRST + zlib.crc32(text.encode(errors="surrogatepass")) % _VOCABULARY
    _texts.setdefault(number, text)
    return number


@lru_cache(maxsize=4096)
def encode(text: str) -> tuple[int, ...]:
    return tuple(token_id(word) for word in words(text))


def decode(ids: Sequence[int]) -> str:
    """The text of ids that this process has made; others are seen as ``?``."""
    return "".join(_texts.get(number, "?") for number in ids)


def message_ids(message: Mapping[str, Any]) -> list[int]:
    """What stands between a message's head and its end: for an assistant's message what the model wrote."""
    ids: list[int] = []
    if message.get("reasoning"):
        ids += [token_id(THINK), *encode(message["reasoning"]), token_id(THOUGHT)]
    ids += encode(_plain(message.get("content")))
    for call in message.get("tool_calls") or ():
        function = call["function"]
        ids += [token_id(TOOL), *encode(function["name"]), *encode(function["arguments"]), token_id(CALLED)]
    return ids


def prompt_ids(body: Mapping[str, Any]) -> list[int]:
    """The prompt of a chat request."""
    ids = [*encode(json.dumps(body["tools"]))] if body.get("tools") else []
    for message in body["messages"]:
        ids += [token_id(START), *encode(message["role"] + "\n"), *message_ids(message), token_id(END), *encode("\n")]
    if body.get("continue_final_message"):
        return ids[:-2]
    return ids + ([token_id(START), *encode("assistant\n")] if body.get("add_generation_prompt", True) else [])


def _plain(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or ())
