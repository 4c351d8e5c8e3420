"""How an answer becomes one command."""

import pytest

from rolloutgen.scaffold.commands import LINE, command_of, is_done, unclosed

HEREDOC = "cat > a.py <<'EOF'\nprint(1)\n"
COMPLETE = [
    ("ls -l", "ls -l"),
    ("  ls -l ", "ls -l"),
    ("$ ls", "ls"),
    ("`ls`", "ls"),
    ("echo `date`", "echo `date`"),
    ("echo $HOME", "echo $HOME"),
    ("cat <<< word", "cat <<< word"),
    ("echo $((1 << 2)) $((a << b))", "echo $((1 << 2)) $((a << b))"),
    (HEREDOC + "EOF", HEREDOC + "EOF"),
    ("cat <<-END > f\n\tx\n\tEND", "cat <<-END > f\n\tx\n\tEND"),
    ('cat <<"A B" > f\nx\nA B', 'cat <<"A B" > f\nx\nA B'),
    ("cat <<A; cat <<B\n1\nA\n2\nB", "cat <<A; cat <<B\n1\nA\n2\nB"),
    ("```bash\nls\npwd\n```", "ls\npwd"),
    ("```\nls\n```", "ls"),
    ("```\n```", ""),
    ("```ls```", "ls"),
    ("```sh\n" + HEREDOC + "EOF\n```", HEREDOC + "EOF"),
    ("<think>a ``` <<EOF</think>\nls", "ls"),
    ("<think>\nhm\n</think>\n\n```\nls\n```", "ls"),
    ("", ""),
]
OPEN = [
    ("cat > a.py <<'EOF'", "\nEOF"),
    (HEREDOC, "\nEOF"),
    (HEREDOC + "EOFF", "\nEOF"),
    ("cat <<A; cat <<B\n1\nA", "\nB"),
    ("```bash", "\n```"),
    ("```bash\nls", "\n```"),
    ("<think>", "</think>"),
    ("<think>\nfirst, ls", "</think>"),
    ("<think>x</think>", LINE),
    ("<think>x</think>\n\n", LINE),
    ("<think>x</think>\ncat <<EOF", "\nEOF"),
]


@pytest.mark.parametrize(("text", "command"), COMPLETE)
def test_a_complete_answer(text: str, command: str) -> None:
    assert unclosed(text) is None
    assert command_of(text) == command


@pytest.mark.parametrize(("text", "stop"), OPEN)
def test_an_answer_that_goes_on(text: str, stop: str) -> None:
    assert unclosed(text) == stop


@pytest.mark.parametrize("command", ["", "exit", " exit 0", "Exit.", "done", "exit;", "logout"])
def test_the_end_is_said(command: str) -> None:
    assert is_done(command)


@pytest.mark.parametrize("command", ["exit 1", "ls", "echo done", "exit && ls", "done.sh"])
def test_the_end_is_not_said(command: str) -> None:
    assert not is_done(command)
