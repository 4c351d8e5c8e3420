"""``rolloutgen export``: the corpus as SFT data (A6)."""

import json
from pathlib import Path
from typing import Any

from exporting import OPENING, Results, conversation
from recording import Talk, answered, assistant, calling, user
from rolloutgen.outcomes import Flag
from rolloutgen.transcript.recorder import Reply

GOING_ON = {"continue_final_message": True, "add_generation_prompt": False}


def said(row: dict[str, Any]) -> list[tuple[str, str, int]]:
    """Role, content and mask of each message."""
    masked = zip(row["messages"], row["loss_mask"], strict=True)
    return [(message["role"], message["content"], mask) for message, mask in masked]


def only_said(row: dict[str, Any]) -> list[str]:
    """What is trained."""
    return [content for _, content, mask in said(row) if mask]


def test_a_row_says_whose_it_is_and_trains_what_was_sampled(results: Results) -> None:
    """Also: what the scaffold itself put into the assistant's mouth is not the policy's."""
    results.play("a", 1, None, conversation)
    results.play("a", 1, True, conversation, flags=(Flag.AGENT_TIMEOUT, Flag.INFERENCE_RETRY))
    (row,) = results.rows()
    assert said(row) == [
        ("system", "s", 0),
        ("user", "an example", 0),
        ("assistant", "from the scaffold", 0),
        ("user", "task", 0),
        ("assistant", "step 0", 1),
        ("user", "seen 0", 0),
        ("assistant", "step 1", 1),
    ]
    assert (row["instance_id"], row["trial"], row["attempt"], row["branch"], row["part"]) == ("a", 1, 2, 0, 0)
    assert (row["reward"], row["result"], row["flags"]) == (1.0, "pass", "agent_timeout inference_retry")
    assert (row["schema_version"], row["model"], row["scaffold"]) == (1, "step_7_hf", "shell")
    assert (row["finish_reason"], row["prefix_break"], row["tools"]) == ("stop", False, "")
    assert len(row["policy"]) == 16


def test_rows_come_in_the_order_of_the_index(results: Results) -> None:
    """And of trial numbers; those without a verdict, and beyond the shard, are not there."""
    for instance, number, passed in [("a", 0, True), ("b", 1, False), ("b", 0, True), ("a", 1, None)]:
        results.play(instance, number, passed, conversation)
    whose = [(row["instance_id"], row["trial"], row["result"]) for row in results.rows("--only", "all")]
    assert whose == [("b", 0, "pass"), ("b", 1, "fail"), ("a", 0, "pass")]
    assert results.export("--only", "all").stdout == results.export("--only", "all").stdout


def test_only_pass_leaves_out_what_failed(results: Results) -> None:
    """A fail by the sandbox's own limit has no reward."""
    results.play("a", 0, True, conversation)
    results.play("b", 0, False, conversation, reward=None, flags=(Flag.OOM,))
    assert [row["instance_id"] for row in results.rows()] == ["a"]
    assert [(row["reward"], row["flags"]) for row in results.rows("--only", "all")] == [(0.0, "oom"), (1.0, "")]


def test_tokens_are_those_of_the_record(results: Results) -> None:
    results.play("a", 0, True, conversation)
    (row,) = results.rows("--format", "tokens")
    assert row["input_ids"] == [1, 2, 10, 11, 12, 5, 6, 13, 14, 15]
    assert row["loss_mask"] == [0, 0, 1, 1, 1, 0, 0, 1, 1, 1]
    assert "logprobs" not in row
    assert "messages" not in row


def test_logprobs_stand_beside_their_tokens(tmp_path: Path) -> None:
    """RECORD_LOGPROBS=1; an attempt from before it was 1 says that it has none."""
    results = Results(tmp_path, ["a"], RECORD_LOGPROBS="1")
    results.play("a", 0, True, conversation, logprobs=True)
    results.play("a", 1, True, conversation, logprobs=False)
    new, old = results.rows("--format", "tokens")
    assert new["logprobs"] == [0, 0, 0, -0.25, -0.5, 0, 0, 0, -0.25, -0.5]
    assert (new["has_logprobs"], old["has_logprobs"]) == (True, False)
    assert old["logprobs"] == [0] * 10


def test_logprobs_of_a_part_of_a_row_are_none(tmp_path: Path) -> None:
    """A row has all of them or says that it has none."""

    def partly(talk: Talk) -> None:
        talk.ask(OPENING, answered(assistant("ls"), prompt_ids=[1], response_ids=[2], logprobs=[-0.5]))
        history = [*OPENING, assistant("ls"), user("seen")]
        talk.ask(history, answered(assistant("exit"), prompt_ids=[1, 2, 3], response_ids=[4]))

    results = Results(tmp_path, ["a"], RECORD_LOGPROBS="1")
    results.play("a", 0, True, partly, logprobs=True)
    (row,) = results.rows("--format", "tokens")
    assert (row["loss_mask"], row["logprobs"], row["has_logprobs"]) == ([0, 1, 0, 1], [0, 0, 0, 0], False)


def test_a_break_in_the_tokens_begins_a_row(results: Results) -> None:
    """Every sampled token is trained once, in the context in which it was sampled; as messages it is one row."""

    def broken(talk: Talk) -> None:
        talk.ask(OPENING, answered(assistant("ls"), prompt_ids=[1, 2], response_ids=[7, 8]))
        history = [*OPENING, assistant("ls"), user("seen")]
        talk.ask(history, answered(assistant("cd"), prompt_ids=[1, 2, 78, 3], response_ids=[9]))
        history += [assistant("cd"), user("seen")]
        talk.ask(history, answered(assistant("exit"), prompt_ids=[1, 2, 78, 3, 9, 4], response_ids=[10]))

    results.play("a", 0, True, broken)
    first, second = results.rows("--format", "tokens")
    assert (first["input_ids"], first["loss_mask"]) == ([1, 2, 7, 8], [0, 0, 1, 1])
    assert (second["input_ids"], second["loss_mask"]) == ([1, 2, 78, 3, 9, 4, 10], [0, 0, 0, 0, 1, 0, 1])
    assert [(row["part"], row["prefix_break"]) for row in (first, second)] == [(0, False), (1, True)]
    (row,) = results.rows()
    assert (row["prefix_break"], only_said(row)) == (True, ["ls", "cd", "exit"])


def test_a_reply_that_came_back_changed_begins_a_row(results: Results) -> None:
    """A scaffold that takes the thoughts out: what was sampled with them is trained with them, and once."""

    def forgetful(talk: Talk) -> None:
        talk.ask(OPENING, assistant("ls", reasoning="where am I?"))
        history = [*OPENING, assistant("ls"), user("seen")]
        talk.ask(history, "cd")
        talk.ask([*history, assistant("cd"), user("seen")], "exit")

    results.play("a", 0, True, forgetful)
    first, second = results.rows()
    assert first["messages"][-1]["reasoning_content"] == "where am I?"
    assert only_said(first) == ["ls"]
    assert said(second)[-5:] == [
        ("assistant", "ls", 0),
        ("user", "seen", 0),
        ("assistant", "cd", 1),
        ("user", "seen", 0),
        ("assistant", "exit", 1),
    ]
    assert [(row["branch"], row["part"]) for row in (first, second)] == [(0, 0), (0, 1)]


def test_a_message_in_two_calls_is_one(results: Results) -> None:
    """The scaffold ``shell`` asks for the rest of a here-document; the stop sequence was sampled too."""

    def heredoc(talk: Talk) -> None:
        talk.ask(OPENING, "cat <<EOF", stop=["\n"])
        talk.ask([*OPENING, assistant("cat <<EOF")], "\nx", stop=["\nEOF"], **GOING_ON)
        talk.ask([*OPENING, assistant("cat <<EOF\nx\nEOF"), user("seen")], "exit", stop=["\n"])

    results.play("a", 0, True, heredoc)
    (row,) = results.rows()
    assert only_said(row) == ["cat <<EOF\nx\nEOF", "exit"]


def test_a_stop_sequence_that_was_not_sampled_is_not_the_policys(results: Results) -> None:
    """The answer was cut off at its longest, and the scaffold closed the block itself."""

    def cut(talk: Talk) -> None:
        talk.ask(OPENING, answered(assistant("```\nls"), finish_reason="length"), stop="\n```")
        talk.ask([*OPENING, assistant("```\nls\n```"), user("seen")], "exit")

    results.play("a", 0, True, cut)
    first, second = results.rows()
    assert (only_said(first), only_said(second)) == (["```\nls"], ["exit"])


def test_what_a_scaffold_began_is_not_the_policys(results: Results) -> None:
    def begun(talk: Talk) -> None:
        talk.ask([*OPENING, assistant("```bash\n")], "ls", **GOING_ON)
        talk.ask([*OPENING, assistant("```bash\nls"), user("seen")], "exit")

    results.play("a", 0, True, begun)
    (row,) = results.rows()
    assert only_said(row) == ["exit"]


def test_branches_have_rows_of_their_own_and_side_calls_none(results: Results) -> None:
    """After a condenser: what the old branch said is trained there, not again."""

    def condensing(talk: Talk) -> None:
        talk.ask(OPENING, "ls")
        history = [*OPENING, assistant("ls"), user("seen")]
        talk.ask([*history, user("sum it up")], "all well", side=True)
        talk.ask([OPENING[0], assistant("ls"), user("all well")], "exit")

    results.play("a", 0, True, condensing)
    first, second = results.rows()
    assert [row["branch"] for row in (first, second)] == [0, 2]
    assert (only_said(first), only_said(second)) == (["ls"], ["exit"])


def test_calls_without_an_answer_teach_nothing(results: Results) -> None:
    """The row ends with the last answer; a branch without one has no row."""

    def killed(talk: Talk) -> None:
        talk.ask(OPENING, answered(assistant("ls"), prompt_ids=[1], response_ids=[2], finish_reason="length"))
        history = [*OPENING, assistant("ls"), user("seen")]
        talk.ask(history, Reply(end="failed", status=502))
        talk.ask(
            history, Reply(end="aborted", status=None, message=assistant("half"), prompt_ids=[3], response_ids=[4])
        )
        talk.ask([user("other")], Reply(end="refused", status=400))
        talk.send(history)

    results.play("a", 0, True, killed)
    (row,) = results.rows()
    assert said(row)[-2:] == [("user", "task", 0), ("assistant", "ls", 1)]
    assert row["finish_reason"] == "length"
    (row,) = results.rows("--format", "tokens")
    assert row["input_ids"] == [1, 2]


def test_tools_and_tool_calls_are_json(results: Results) -> None:
    """Other tools are another row: a row has one list of them."""
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"b": 1, "a": 2}}}]

    def calls_tools(talk: Talk) -> None:
        called = assistant(None, tool_calls=calling("bash", '{"command": "ls"}', "c1"))
        talk.ask(OPENING, called, tools=tools)
        history = [*OPENING, called, {"role": "tool", "content": [{"type": "text", "text": "x"}], "tool_call_id": "c1"}]
        talk.ask(history, "done", tools=tools)
        talk.ask([*history, assistant("done"), user("more")], "no")

    results.play("a", 0, True, calls_tools)
    first, second = results.rows()
    assert (json.loads(first["tools"]), second["tools"]) == (tools, "")
    assert first["tools"].index('"b"') < first["tools"].index('"a"')
    *_, call, answer, last = first["messages"]
    assert json.loads(call["tool_calls"])[0]["function"] == {"name": "bash", "arguments": '{"command": "ls"}'}
    assert (answer["role"], answer["content"], answer["tool_call_id"]) == ("tool", "x", "c1")
    assert (last["content"], last["tool_calls"]) == ("done", "")
    assert (first["loss_mask"][-3:], only_said(second)) == ([1, 0, 1], ["no"])


def test_completions_are_rows_of_tokens_only(results: Results) -> None:
    results.play("a", 0, True, lambda talk: talk.complete("1 2", " 3", prompt_ids=[1, 2], response_ids=[3]))
    assert [row["input_ids"] for row in results.rows("--format", "tokens")] == [[1, 2, 3]]
    shown = results.export()
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "no answered call that the format messages can hold" in shown.stderr


def test_the_policy_is_told_apart_by_what_makes_it(results: Results) -> None:
    """MAX_TURNS and the scaffold are not the policy; temperature and weights are."""
    results.play("a", 0, True, conversation)
    path = results.paths.run_json
    run = json.loads(path.read_bytes())

    def policy(**changes: object) -> str:
        path.write_text(json.dumps({**run, "fingerprint": {**run["fingerprint"], **changes}}))
        return str(results.rows()[0]["policy"])

    same = policy()
    assert policy(MAX_TURNS=7, SCAFFOLD="other", PASS_THRESHOLD=0.5) == same
    assert len({same, policy(TEMPERATURE=0.7), policy(**{"MODEL_PATH/config.json": "x"}), policy(TOP_P=0.9)}) == 4
