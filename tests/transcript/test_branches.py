"""With which conversation a call goes on, and where a new one left (issue of the gateway: a rewritten history)."""

from pathlib import Path
from typing import Any

import pytest

from recording import Talk, answered, assistant, calling, system, user
from rolloutgen.transcript.recorder import Reply

OPENING = [system("s"), user("task")]
LOST = Reply(end="failed", status=502)


@pytest.fixture
def talk(tmp_path: Path) -> Talk:
    return Talk(tmp_path / "transcript.jsonl")


@pytest.mark.parametrize(
    ("reply", "sent_back"),
    [
        (assistant("ls"), assistant("ls")),
        (assistant("ls", reasoning="hm"), assistant("ls")),
        (assistant("\n\nls\n"), assistant("ls")),
        (assistant("cat <<EOF\nx"), assistant("cat <<EOF\nx\nEOF")),
        (assistant("<think>hm</think>\n\nls"), assistant("ls")),
        (assistant("ls"), assistant([{"type": "text", "text": "ls"}])),  # type: ignore[arg-type] # parts
        (
            assistant(None, tool_calls=calling("f", '{"a": 1, "b": 2}')),
            assistant("", tool_calls=calling("f", '{"b":2,"a":1}', "toolu_1")),
        ),
        (assistant("", tool_calls=[]), None),
        (assistant("\n"), None),
    ],
)
def test_a_reply_that_comes_back_goes_on(talk: Talk, reply: dict[str, Any], sent_back: dict[str, Any] | None) -> None:
    """Scaffolds send replies back in forms of their own, or leave out one that says nothing."""
    talk.ask(OPENING, reply)
    talk.ask([*OPENING, *([sent_back] if sent_back else []), user("seen")], "exit")
    assert talk.branch_of == [0, 0]
    assert talk.calls[1].left is None


@pytest.mark.parametrize(
    "following",
    [
        [user("no, do something else")],
        [assistant("rm -r /"), user("seen")],
        [assistant("ls", tool_calls=calling("f", "{}")), user("seen")],
        [],
    ],
)
def test_another_reply_than_the_models_is_a_new_branch(talk: Talk, following: list[dict[str, Any]]) -> None:
    talk.ask(OPENING, "ls")
    talk.ask([*OPENING, *following], "exit")
    assert talk.branch_of == [0, 1]
    assert talk.calls[1].left == (0, 2)


def test_a_condensed_history_is_a_new_branch(talk: Talk) -> None:
    history = [*OPENING]
    for turn in range(4):
        talk.ask(history, f"step {turn}")
        history += [assistant(f"step {turn}"), user(f"seen {turn}")]
    condensed = [*OPENING, user("so far: all well"), *history[-2:]]
    talk.ask(condensed, "on")
    talk.ask([*condensed, assistant("on"), user("seen")], "exit")
    assert talk.branch_of == [0, 0, 0, 0, 1, 1]
    assert talk.calls[4].left == (3, 2)
    old, new = talk.branches
    assert old.leaf.conversation() == [*history[:-1]]
    assert new.leaf.conversation() == [*condensed, assistant("on"), user("seen"), assistant("exit")]


def test_two_agents_in_turns_keep_their_branches(talk: Talk) -> None:
    """Also where both begin alike."""
    first, second = [*OPENING, user("one")], [*OPENING, user("two")]
    for turn in range(3):
        for history in (first, second):
            talk.ask(history, f"step {turn}")
            history += [assistant(f"step {turn}"), user("seen")]
    assert talk.branch_of == [0, 1] * 3
    assert talk.calls[1].left == (0, 2)


def test_of_replies_to_the_same_prompt_the_one_that_comes_back_goes_on(talk: Talk) -> None:
    for said in ("a", "abc", "ab"):
        talk.ask(OPENING, said)
    assert talk.branch_of == [0, 1, 2]
    talk.ask([*OPENING, assistant("abc"), user("seen")], "x")
    talk.ask([*OPENING, assistant("ab"), user("seen")], "y")
    assert talk.branch_of[3:] == [1, 2]


@pytest.mark.parametrize("reply", [LOST, Reply(end="aborted", status=None, message=assistant("half of"))])
def test_a_call_without_an_answer_is_asked_again_in_its_branch(talk: Talk, reply: Reply) -> None:
    talk.ask(OPENING, "ls")
    longer = [*OPENING, assistant("ls"), user("seen")]
    talk.ask(longer, reply)
    talk.ask(longer, "exit")
    assert talk.branch_of == [0, 0, 0]


def test_a_call_under_way_is_nobodys_past(talk: Talk) -> None:
    """Two samples of one prompt at the same time."""
    one, two = talk.send(OPENING), talk.send(OPENING)
    talk.recorder.reply(two, answered(assistant("b")))
    talk.recorder.reply(one, answered(assistant("a")))
    talk.ask([*OPENING, assistant("b")], "on")
    assert talk.branch_of == [0, 1, 1]


def test_side_calls_keep_to_themselves(talk: Talk) -> None:
    """A condenser sends the whole history; the agent goes on as if it had not."""
    talk.ask(OPENING, "ls")
    history = [*OPENING, assistant("ls"), user("seen")]
    talk.ask([*history, user("sum it up")], "all well", side=True)
    talk.ask(history, "exit")
    assert talk.branch_of == [0, 1, 0]
    assert [branch.side for branch in talk.branches] == [False, True]
    assert talk.calls[1].left == (0, 3)


def test_a_message_is_continued(talk: Talk) -> None:
    """The scaffold ``shell``: the answer stopped at a line's end, though a here-document is open."""
    going_on = {"continue_final_message": True, "add_generation_prompt": False}
    talk.ask(OPENING, "cat <<EOF", stop=["\n"])
    talk.ask([*OPENING, assistant("cat <<EOF")], "\nx", stop=["\nEOF"], **going_on)
    whole = assistant("cat <<EOF\nx\nEOF")
    talk.ask([*OPENING, whole, user("seen")], "exit")
    assert talk.branch_of == [0, 0, 0]
    assert talk.calls[1].conversation() == [*OPENING, assistant("cat <<EOF\nx")]
    assert talk.branches[0].leaf.conversation() == [*OPENING, whole, user("seen"), assistant("exit")]


def test_texts_go_on_where_prompt_and_reply_do(talk: Talk) -> None:
    talk.complete("1 2", " 3")
    talk.complete("1 2 3\n4", " 5")
    talk.complete("1 2\n9", " 5")
    assert talk.branch_of == [0, 0, 1]
    assert talk.calls[2].left == (1, 3)
    assert [call.prompt() for call in talk.calls] == ["1 2", "1 2 3\n4", "1 2\n9"]


@pytest.mark.parametrize(
    ("prompt", "is_break"), [([1, 2, 7, 8, 3], False), ([1, 2, 7, 8], False), ([1, 2, 7, 9, 3], True), ([1, 2], True)]
)
def test_a_break_in_the_token_ids_is_marked(talk: Talk, prompt: list[int], is_break: bool) -> None:
    """Also where a call between them failed; the first call of a branch breaks nothing."""
    talk.ask(OPENING, answered(assistant("ls"), prompt_ids=[1, 2], response_ids=[7, 8]))
    history = [*OPENING, assistant("ls"), user("seen")]
    talk.ask(history, LOST)
    talk.ask(history, answered(assistant("exit"), prompt_ids=prompt, response_ids=[9]))
    talk.ask([user("other")], answered(assistant("x"), prompt_ids=[5], response_ids=[9]))
    assert [call.prefix_break for call in talk.calls] == [False, None, is_break, False]
    assert list(talk.calls[2].prompt_ids() or ()) == prompt


def test_hundreds_of_conversations_forget_the_oldest_and_stay_right(talk: Talk) -> None:
    for number in range(200):
        talk.ask([user(f"task {number}")], "ls")
    talk.ask([user("task 199"), assistant("ls"), user("seen")], "x")
    talk.ask([user("task 0"), assistant("ls"), user("seen")], "x")
    assert talk.branch_of[199:] == [199, 199, 200]
    assert talk.calls[201].messages() == [user("task 0"), assistant("ls"), user("seen")]
