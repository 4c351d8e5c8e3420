"""A config of tests: every key that a run with a model must have, as texts; nothing of what it names is there."""

from collections.abc import Mapping
from pathlib import Path

from rolloutgen.config.reading import read_settings
from rolloutgen.knobs import Value
from rolloutgen.settings import Settings

TEXTS: Mapping[str, str] = {
    "PROJECT_NAME": "test",
    "EXP_NAME": "exp",
    "SCAFFOLD": "shell",
    "BACKEND": "local",
    "INDEX_FILE": "/none",
    "RESULTS_DIR": "/none",
    "OUTPUT_INDEX": "/none",
    "N_TRIALS": "1",
    "N_CONCURRENT": "1",
    "MODEL_PATH": "/models/none",
    "TEMPERATURE": "1.0",
    "VLLM_MAX_MODEL_LEN": "2048",
    "VLLM_DTYPE": "auto",
    "GPU_MEMORY_UTILIZATION": "0.9",
    "SERVER_START_TIMEOUT_SEC": "600",
    "GATEWAY_HOLD_SEC": "600",
    "GATEWAY_MAX_INFLIGHT": "8",
    "HEARTBEAT_SEC": "60",
    "MAX_TURNS": "4",
    "MAX_RESPONSE_LEN": "64",
    "MODEL_CALL_TIMEOUT_SEC": "600",
    "SANDBOX_EGRESS": "none",
    "SANDBOX_START_TIMEOUT_SEC": "60",
    "EXEC_OUTPUT_MAX_MB": "16",
}


def make_settings(**texts: str) -> Settings:
    """The settings of that config with these keys changed or added."""
    draft = read_settings({key: Value(text, "test") for key, text in {**TEXTS, **texts}.items()}, Path("/"))
    assert not draft.invalid, draft.findings
    return draft.settings
