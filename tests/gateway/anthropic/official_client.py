"""Anthropic's own client, in a Python that has it (vLLM's): official_client.py BASE_URL; prints what it read."""

import json
import sys
from typing import Any

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
asked: dict[str, Any] = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "Go."}]}
whole = client.messages.create(**asked)
with client.messages.stream(**asked) as stream:
    kinds = [event.type for event in stream]
    streamed = stream.get_final_message()
failures = []
for stop in ("full", "gone"):
    try:
        client.messages.create(**asked, stop_sequences=[stop])
    except anthropic.APIStatusError as error:
        failures.append([type(error).__name__, error.message])
try:
    for _ in client.messages.create(**asked, stop_sequences=["broken"], stream=True):
        pass
except anthropic.APIStatusError as error:
    failures.append([type(error).__name__, error.message])
counted = client.messages.count_tokens(model="m", messages=asked["messages"])
print(
    json.dumps(
        {
            "whole": whole.model_dump(mode="json", exclude_none=True),
            "streamed": streamed.model_dump(mode="json", exclude_none=True),
            "kinds": kinds,
            "failures": failures,
            "counted": counted.input_tokens,
        }
    )
)
