"""What the installed vLLM says of our command line, in seconds and before anything is loaded."""

import sys
from pathlib import Path

import pytest

from rolloutgen.errors import FindingsError, Level
from rolloutgen.serving import check_command_line, vllm_python, vllm_version
from texts import make_settings


@pytest.mark.slow
def test_the_real_vllm_takes_our_command_line(real_vllm: Path) -> None:
    settings = make_settings(VLLM_BIN=str(real_vllm), TOOL_CALL_PARSER="hermes")
    assert [finding.level for finding in check_command_line(settings, 0)] == [Level.OK]
    assert vllm_version(settings).startswith("0.")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"VLLM_EXTRA_ARGS": "--flag-of-another-version 3"}, "--flag-of-another-version"),
        ({"VLLM_EXTRA_ARGS": "--max-num-seqs many"}, "--max-num-seqs"),
        ({"TOOL_CALL_PARSER": "nobodys"}, "nobodys"),
    ],
)
def test_the_real_vllm_refuses_in_its_own_words(real_vllm: Path, texts: dict[str, str], words: str) -> None:
    (finding,) = check_command_line(make_settings(VLLM_BIN=str(real_vllm), **texts), 0)
    assert finding.level is Level.FATAL
    assert words in finding.message


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("--port 9000", "VLLM_PORT"),
        ("--max-num-seqs 8 --served_model_name=x", "SERVED_MODEL_NAME"),
        ("--ssl-keyfile k", "127.0.0.1"),
        ("--api-k hunter2", "key of its own"),
        ("--config args.yaml", "those of a file are not seen"),
    ],
)
def test_arguments_that_would_hide_the_server_from_us_are_refused(words: str, instead: str) -> None:
    """C22: it would be looked for elsewhere, for half an hour. Beginnings of names are names, as for vLLM."""
    assert_refused(words, instead)


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("--seed 1", "says the same things again"),
        ("--generation-config auto", "TEMPERATURE"),
        ("--override-generation-config.max_new_tokens=5", "MAX_RESPONSE_LEN"),
        ("--logprobs-mode raw_logprobs", "RECORD_LOGPROBS"),
        ("--disable-log-stats", "stuck"),
        ("--max-model-len=64", "VLLM_MAX_MODEL_LEN"),
        ("-tp 2", "GEN_TP"),
        ("--enable-auto --tool-call hermes", "TOOL_CALL_PARSER"),
    ],
)
def test_arguments_that_would_break_what_a_run_promises_are_refused(words: str, instead: str) -> None:
    """A13, A14: they would come last on the command line, and win."""
    assert_refused(words, instead)


def assert_refused(words: str, instead: str) -> None:
    finding = check_command_line(make_settings(VLLM_EXTRA_ARGS=words), 0)[0]
    assert (finding.level, finding.subject) == (Level.FATAL, "VLLM_EXTRA_ARGS")
    assert "is set by this program" in finding.message
    assert instead in finding.mend


def test_arguments_whose_names_only_resemble_ours_reach_vllm() -> None:
    """What is left to be found here is that there is no vLLM."""
    words = "--seed-of-another 1 --data-parallel-size-local 1 -- -t"
    (finding,) = check_command_line(make_settings(VLLM_EXTRA_ARGS=words, VLLM_BIN="/none/vllm"), 0)
    assert finding.subject == "VLLM_BIN"


def test_a_missing_command_is_found() -> None:
    settings = make_settings(VLLM_BIN="/none/vllm")
    (finding,) = check_command_line(settings, 0)
    assert (finding.level, finding.subject) == (Level.FATAL, "VLLM_BIN")
    assert "/none/vllm is missing" in finding.message
    with pytest.raises(FindingsError, match="missing"):
        vllm_version(settings)


def test_a_command_that_is_no_vllm_is_found(tmp_path: Path) -> None:
    command = tmp_path / "vllm"
    command.write_text(f"#!{sys.executable}\n")
    assert "not executable" in check_command_line(make_settings(VLLM_BIN=str(command)), 0)[0].message
    command.chmod(0o755)
    finding = check_command_line(make_settings(VLLM_BIN=str(command)), 0)[0]
    assert finding.level is Level.FATAL
    assert "is no vLLM" in finding.message


def test_the_python_of_a_command_is_the_one_that_runs_it(tmp_path: Path) -> None:
    command = tmp_path / "vllm"
    command.write_text(f"#!{sys.executable}\n")
    assert vllm_python(command) == Path(sys.executable)
    command.write_text("#!/bin/sh\n")
    with pytest.raises(ValueError, match="no Python"):
        vllm_python(command)
    (tmp_path / "python").symlink_to(sys.executable)
    assert vllm_python(command) == tmp_path / "python"
