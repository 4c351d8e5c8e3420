"""What is an answer, and what comes of broken weights."""

import pytest

from rolloutgen.gateway.gibberish import gibberish

ANSWERS = (
    "The capital of France is Paris.",
    "Paris",
    "1, 2, 3",
    "法国的首都是巴黎。",
    "फ़्रांस की राजधानी पेरिस है।",
    "Париж — столица Франции.",
    '{"answer": "Paris"}',
    "**Paris** is the capital of France! \U0001f1eb\U0001f1f7",
    "Okay, so the user asks for the capital of France. I know that one: Paris. But",
    "ls -la /tmp && cat README.md | grep -n foo",
    "very very very very good, said the cat",
    "Paris is the capi\ufffd",
)
RUBBISH = (
    "",
    "  \n ",
    "!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!",
    "\ufffd\ufffd\ufffd ab \ufffd\ufffd\ufffd cd \ufffd\ufffd",
    "the the the the the the the the the the",
    "ototototototototototototototot",
    "</s></s></s></s></s></s></s></s></s></s>",
    "\n\n0\n\n0\n\n0\n\n0\n\n0\n\n0\n\n0\n\n0\n\n0",
    "?!@ #$% ^&* ()_ +=[ ]{} ;': ,./ <>? ab",
)


@pytest.mark.parametrize("text", ANSWERS)
def test_an_answer_is_none(text: str) -> None:
    assert gibberish(text, [-0.1, -2.0]) == ""


@pytest.mark.parametrize("text", RUBBISH)
def test_rubbish_is_called_so(text: str) -> None:
    assert gibberish(text) != ""


@pytest.mark.parametrize("logprobs", [[-10.2, -10.5, -9.8], [float("nan"), -1.0], [-9999.0, -0.1]])
def test_words_at_random_are_seen_by_their_probability(logprobs: list[float]) -> None:
    assert "log-probability" in gibberish("walkingRegex isset Ã bedeutung ledge", logprobs)
