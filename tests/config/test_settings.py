"""Keys, units, ranges and defaults: every value read exactly, or refused with its text and its place."""

import contextlib
import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutgen.config.reading import Draft, read_settings
from rolloutgen.errors import Level
from rolloutgen.knobs import Value, integer, number, pairs, words
from rolloutgen.settings import KNOBS

GIVEN = {
    "PROJECT_NAME": "test",
    "SCAFFOLD": "shell",
    "BACKEND": "local",
    "INDEX_FILE": "index.parquet",
    "RESULTS_DIR": "/data/results",
    "OUTPUT_INDEX": "/data/selected.parquet",
    "N_TRIALS": "4",
    "N_CONCURRENT": "8",
    "MODEL_PATH": "/models/m",
    "TEMPERATURE": "1.0",
    "VLLM_MAX_MODEL_LEN": "4096",
}
LAYERS = {
    "VLLM_DTYPE": "auto",
    "GPU_MEMORY_UTILIZATION": "0.9",
    "SERVER_START_TIMEOUT_SEC": "60",
    "GATEWAY_HOLD_SEC": "60",
    "GATEWAY_MAX_INFLIGHT": "8",
    "HEARTBEAT_SEC": "60",
    "MAX_TURNS": "4",
    "MAX_RESPONSE_LEN": "64",
    "MODEL_CALL_TIMEOUT_SEC": "60",
    "SANDBOX_EGRESS": "none",
    "SANDBOX_START_TIMEOUT_SEC": "60",
    "EXEC_OUTPUT_MAX_MB": "16",
}
MODEL_KEYS = {"MODEL_PATH", "TEMPERATURE", "VLLM_MAX_MODEL_LEN"}


def read(*without: str, **texts: str) -> Draft:
    given_texts = {key: text for key, text in {**GIVEN, **LAYERS, **texts}.items() if key not in without}
    return read_settings({key: Value(text, f"my.env:{key}") for key, text in given_texts.items()}, Path("/base"))


def fatal(draft: Draft) -> set[str]:
    return {finding.subject for finding in draft.findings if finding.level is Level.FATAL}


def test_a8_the_required_keys_suffice() -> None:
    draft = read()
    assert draft.findings == ()
    assert draft.settings.index_file == Path("/base/index.parquet")
    assert draft.settings.instances_file is None  # A10
    assert draft.settings.policy.temperature == 1.0


@pytest.mark.parametrize("key", sorted(GIVEN))
def test_a8_each_missing_key_is_named_with_an_example(key: str) -> None:
    (finding,) = [finding for finding in read(key).findings if finding.subject == key]
    assert finding.level is Level.FATAL
    assert finding.message == "is not set"
    assert f"for example {key}=" in finding.mend


def test_a_scaffold_without_a_model_asks_for_none_and_says_what_is_not_used() -> None:
    layers = {key for key in LAYERS if KNOBS[key].scope == "model"}
    assert fatal(read(*MODEL_KEYS, *layers, SCAFFOLD="oracle")) == set()
    (warning,) = read(*layers, SCAFFOLD="oracle").findings
    assert warning.level is Level.WARN
    assert all(key in warning.message for key in MODEL_KEYS)


def test_a17_preflight_only_has_an_answer_of_its_own() -> None:
    (finding,) = read(PREFLIGHT_ONLY="1").findings
    assert finding.level is Level.FATAL
    assert "train runner" in finding.message
    assert "--dry-run" in finding.mend


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("N_TRIALS", "0"),
        ("N_TRIALS", "4 "),
        ("N_TRIALS", "four"),
        ("N_TRIALS", "4.0"),
        ("N_TRIALS", "٤"),
        ("N_TRIALS", "1_000"),
        ("N_CONCURRENT", "-1"),
        ("TEMPERATURE", "nan"),
        ("TEMPERATURE", "inf"),
        ("TEMPERATURE", "-0.1"),
        ("TOP_P", "0"),
        ("TOP_P", "1.1"),
        ("TOP_P", ""),
        ("GPU_MEMORY_UTILIZATION", "1.5"),
        ("PASS_THRESHOLD", "1,0"),
        ("RETRY_EXHAUSTED", "yes"),
        ("SCAFFOLD", "Shell"),
        ("BACKEND", "docker"),
        ("SANDBOX_EGRESS", "all"),
        ("VLLM_PORT", "80"),
        ("VLLM_PORT", "70000"),
        ("VLLM_EXTRA_ARGS", "--a 'b"),
        ("VLLM_ENV", "NAME"),
        ("VLLM_ENV", "A=1 A=2"),
        ("VLLM_RESTARTS", "-1"),
        ("REASONING_EFFORT", "High"),
        ("CHAT_TEMPLATE_KWARGS", "enable_thinking=false"),
        ("CHAT_TEMPLATE_KWARGS", "[1]"),
        ("CHAT_TEMPLATE_KWARGS", '{"a": NaN}'),
        ("SAMPLING_PASSTHROUGH", "true"),
        ("GATEWAY_HOST", "10.0.0.1/24"),
        ("GATEWAY_PORT", "80"),
        ("GATEWAY_HOLD_SEC", "-1"),
        ("GATEWAY_MAX_INFLIGHT", "0"),
        ("HEARTBEAT_SEC", "0.5"),
        ("RECORD_TOKEN_IDS", "yes"),
        ("RECORD_LOGPROBS", "2"),
        ("TOOL_CANARY", "off"),
        ("LOCAL_IMAGES", "*"),
        ("PROJECT_NAME", "a b"),
        ("PROJECT_NAME", "../x"),
        ("EXP_NAME", "a/b"),
        ("RESULTS_DIR", "a\nb"),
        ("RESULTS_DIR", "a\udcff"),
        ("RESULTS_DIR", ""),
    ],
)
def test_c24_what_is_not_a_value_is_refused_with_its_text_and_place(key: str, text: str) -> None:
    draft = read(**{key: text})
    assert fatal(draft) == {key}
    (finding,) = [finding for finding in draft.findings if finding.subject == key]
    assert finding.where == f"my.env:{key}"
    assert repr(text) in finding.message or finding.message == "is empty"
    assert draft.invalid == {key}


def test_every_problem_at_once() -> None:
    assert fatal(read("INDEX_FILE", N_TRIALS="x", TOP_P="2", N_TRAILS="1")) == {
        "INDEX_FILE",
        "N_TRIALS",
        "TOP_P",
        "N_TRAILS",
    }


def test_an_excused_key_is_invalid_without_a_word() -> None:
    values = {key: Value(text, "x") for key, text in {**GIVEN, **LAYERS, "N_TRIALS": "x"}.items()}
    draft = read_settings(values, Path("/"), frozenset({"N_TRIALS"}))
    assert draft.findings == ()
    assert draft.invalid == {"N_TRIALS"}


def test_words_and_pairs_are_quoted_as_in_a_shell() -> None:
    draft = read(VLLM_EXTRA_ARGS="--a 'b c' --d", VLLM_ENV="A='x y' B=2", LOCAL_IMAGES="'*=host' a/b:1=/images/b")
    assert draft.settings.vllm_extra_args == ("--a", "b c", "--d")
    assert draft.settings.vllm_env == {"A": "x y", "B": "2"}
    assert draft.settings.local_images == {"*": "host", "a/b:1": "/images/b"}


def test_every_default_is_a_value_of_its_own_key() -> None:
    for key, declared in KNOBS.items():
        assert declared.meaning, key
        if declared.default is not None:
            declared.parse(declared.default)
        if declared.example and "/" not in declared.example:
            declared.parse(declared.example.strip("'"))


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        read().settings.n_trials = 5  # type: ignore[misc]  # what must not work


@given(st.integers())
def test_a_whole_number_reads_as_itself_or_not_at_all(value: int) -> None:
    parse = integer(-1000, 10_000)
    if -1000 <= value <= 10_000:
        assert parse(str(value)) == value
    else:
        with pytest.raises(ValueError, match="must be a whole number"):
            parse(str(value))


@given(st.floats(min_value=0, max_value=100, allow_nan=False))
def test_a_number_reads_as_itself(value: float) -> None:
    assert number(0, 100)(repr(value)) == value


@given(st.text())
def test_no_text_makes_a_parser_raise_anything_else(text: str) -> None:
    for parse in (integer(1), number(0), words, pairs("A=B"), *(declared.parse for declared in KNOBS.values())):
        with contextlib.suppress(ValueError):
            parse(text)
