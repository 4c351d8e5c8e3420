"""Bodies of requests, as hostile as scaffolds and sandboxes can make them: parsed and checked before anything else.

Only what the gateway itself relies on is checked; the rest is for vLLM to refuse.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rolloutgen.gateway import jsons
from rolloutgen.gateway.errors import BadRequestError

MAX_BYTES: Final = 64 * 2**20
"""Of one request."""
MAX_VALUES: Final = 2**21
"""And so many commas and opening brackets: each value takes time and some hundred bytes of memory, for which all other
calls would wait. A text with so many commas fits no model's context."""
_TOO_LARGE: Final = 413
STOPS_MAX: Final = 64
_STOP_CHARS: Final = 4096
"""Of one stop sequence. The server looks for each of them at every token of the answer."""
_LINKS: Final = ("url", "image_url", "audio_url", "video_url", "file_url", "input_audio", "file", "image", "video")


def parse(raw: bytes) -> dict[str, Any]:
    """The JSON object in ``raw``. Raises BadRequestError."""
    if len(raw) > MAX_VALUES and len(raw) - len(raw.translate(None, b",{[")) > MAX_VALUES:
        raise BadRequestError(f"the request holds more than {MAX_VALUES} values", _TOO_LARGE)
    try:
        body = jsons.loads(raw)
    except ValueError as error:
        raise BadRequestError(f"the request is not valid JSON in UTF-8: {error}") from error
    if not isinstance(body, dict):
        raise BadRequestError("the request must be a JSON object")
    return body


def encoded(sent: Mapping[str, Any], asked: Mapping[str, Any]) -> bytes:
    """``sent`` as JSON. Raises BadRequestError where either is nested too deeply to be sent on and written down."""
    try:
        jsons.dumps(asked)
        return jsons.dumps(sent)
    except ValueError as error:
        raise BadRequestError(f"the request cannot be passed on: {error}") from error


def check_chat(body: Mapping[str, Any]) -> None:
    """Raises BadRequestError."""
    _check_ends(body)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("messages must be a list of messages, and not empty")
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            raise BadRequestError(f"messages[{number}] must be an object")
        if isinstance(message.get("content"), list):
            _check_parts(message["content"], f"messages[{number}].content")
    tools = body.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise BadRequestError("tools must be a list of objects")


def check_completion(body: Mapping[str, Any]) -> None:
    """One prompt, as text or token ids, in a list of its own or not. Raises BadRequestError."""
    _check_ends(body)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    ids = isinstance(prompt, list) and prompt and all(type(token) is int and token >= 0 for token in prompt)
    if not (isinstance(prompt, str) or ids):
        raise BadRequestError("prompt must be one text, or one list of token ids")


def _check_ends(body: Mapping[str, Any]) -> None:
    """How the answer comes, and where it stops."""
    if not isinstance(body.get("stream"), bool | None):
        raise BadRequestError("stream must be true or false")
    for name in ("stop", "stop_token_ids"):
        stops = body.get(name)
        stops = stops if isinstance(stops, list) else [stops]
        if len(stops) > STOPS_MAX or any(isinstance(stop, str) and len(stop) > _STOP_CHARS for stop in stops):
            raise BadRequestError(f"{name} must be at most {STOPS_MAX} of at most {_STOP_CHARS} characters")


def _check_parts(parts: Sequence[Any], where: str) -> None:
    """Media come with the request: vLLM would fetch what a link names, from where no sandbox may reach."""
    for part in parts:
        links = [part[name] for name in _LINKS if name in part] if isinstance(part, dict) else []
        if not all(_is_inline(link) for link in links):
            raise BadRequestError(f"{where}: media must be sent as data: URLs; links are not followed")


def _is_inline(link: object) -> bool:
    """Whether nothing has to be fetched for it."""
    if isinstance(link, str):
        return link.startswith("data:")
    return isinstance(link, dict) and all(
        _is_inline(value) for name, value in link.items() if name in _LINKS or name == "file_data"
    )
