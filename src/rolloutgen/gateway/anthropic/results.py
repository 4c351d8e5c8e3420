"""Tool results and images."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rolloutgen.gateway.anthropic.shapes import mapping, name, sequence, short, text, unserved
from rolloutgen.gateway.errors import BadRequestError

Chat = dict[str, Any]
_FORMATS: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})


def results(answered: Iterable[tuple[Mapping[str, Any], str]], calls: Sequence[str]) -> list[Chat]:
    """The messages for the ``tool_result`` blocks of one message, each with its place, in the order of the ``calls``.

    Clients send results as they come, and most templates show no ids: out of order, each would be taken for another's.
    A tool's message holds text only (templates know no other), so images follow in a user's message behind all
    results: between two of them it would part the second from its call. ``is_error`` has no place in the chat form;
    the text of the result says it.
    """
    ranks = {call: rank for rank, call in enumerate(calls)}
    found: list[tuple[int, Chat, Sequence[Chat]]] = []
    for block, where in answered:
        call = name(block.get("tool_use_id"), f"{where}.tool_use_id")
        said, shown = _content(block.get("content"), f"{where}.content")
        message = {"role": "tool", "tool_call_id": call, "content": said}
        found.append((ranks.get(call, len(ranks)), message, shown))
    found.sort(key=lambda one: one[0])
    images = [image for _, _, shown in found for image in shown]
    return [message for _, message, _ in found] + ([{"role": "user", "content": images}] if images else [])


def _content(content: Any, where: str) -> tuple[str, Sequence[Chat]]:
    """Texts, a line each, and images."""
    if content is None or isinstance(content, str):
        return content or "", ()
    texts: list[str] = []
    images: list[Chat] = []
    for n, block in enumerate(sequence(content, where)):
        place = f"{where}[{n}]"
        kind = mapping(block, place).get("type")
        if kind == "text":
            texts.append(text(block.get("text"), f"{place}.text"))
        elif kind == "image":
            images.append(image_part(block, place))
        elif kind == "tool_reference":
            texts.append(f"[tool {name(block.get('tool_name'), f'{place}.tool_name')} is loaded]")
        else:
            raise unserved(place, kind, "a tool's result")
    return "\n".join(texts), images


def image_part(block: Mapping[str, Any], where: str) -> Chat:
    """An ``image_url`` part; a base64 source becomes a data URL."""
    source = mapping(block.get("source"), f"{where}.source")
    kind = source.get("type")
    if kind == "base64":
        form = source.get("media_type")
        if not isinstance(form, str) or form not in _FORMATS:
            raise BadRequestError(f"{where}.source.media_type: must be one of {', '.join(sorted(_FORMATS))}")
        url = f"data:{form};base64,{text(source.get('data'), f'{where}.source.data')}"
    elif kind == "url":
        url = text(source.get("url"), f"{where}.source.url")
        if not url.startswith(("https://", "http://")):
            raise BadRequestError(f"{where}.source.url: {short(url)} is no http(s) address")
    else:
        raise BadRequestError(f"{where}.source.type: an image is given as base64 or url")
    return {"type": "image_url", "image_url": {"url": url}}
