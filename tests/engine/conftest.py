"""A run's settings, and tasks made to measure."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rolloutgen.config.reading import read_settings
from rolloutgen.knobs import Value
from rolloutgen.models import Attempt, Instance, Trial
from rolloutgen.settings import Settings

_KEYS = {
    "PROJECT_NAME": "test",
    "INDEX_FILE": "index.parquet",
    "RESULTS_DIR": "results",
    "OUTPUT_INDEX": "selected.parquet",
    "N_TRIALS": "1",
    "N_CONCURRENT": "16",
    "SCAFFOLD": "oracle",
    "BACKEND": "local",
    "LOCAL_IMAGES": "'*=host'",
    "SANDBOX_EGRESS": "open",
    "SANDBOX_START_TIMEOUT_SEC": "60",
    "EXEC_OUTPUT_MAX_MB": "16",
}
_MODEL_KEYS = {
    "MODEL_PATH": "model",
    "TEMPERATURE": "0.7",
    "VLLM_MAX_MODEL_LEN": "2048",
    "MAX_TURNS": "5",
    "MAX_RESPONSE_LEN": "64",
    "MODEL_CALL_TIMEOUT_SEC": "5",
    "VLLM_DTYPE": "auto",
    "GPU_MEMORY_UTILIZATION": "0.9",
    "SERVER_START_TIMEOUT_SEC": "60",
    "GATEWAY_HOLD_SEC": "60",
    "GATEWAY_MAX_INFLIGHT": "4",
    "HEARTBEAT_SEC": "60",
}

type MakeSettings = Callable[..., Settings]
type MakeTask = Callable[..., Path]


@pytest.fixture
def make_settings(tmp_path: Path) -> MakeSettings:
    def make(**keys: str) -> Settings:
        chosen = _KEYS | (_MODEL_KEYS if keys.get("SCAFFOLD") == "shell" else {}) | keys
        draft = read_settings({key: Value(text, "test") for key, text in chosen.items()}, tmp_path)
        assert not draft.invalid, draft.findings
        return draft.settings

    return make


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    """A task whose solution writes /app/done and whose tests ask for it; ``toml`` is added to its task.toml."""

    def make(name: str = "task", *, toml: str = "", dockerfile: str = "FROM debian:12\nWORKDIR /app\n") -> Path:
        folder = tmp_path / "tasks" / name
        for part in ("environment", "solution", "tests"):
            (folder / part).mkdir(parents=True)
        (folder / "instruction.md").write_text("Write yes into the file done.\n")
        (folder / "task.toml").write_text(f'version = "1.0"\n{toml}')
        (folder / "environment" / "Dockerfile").write_text(dockerfile)
        _script(folder / "solution" / "solve.sh", "echo yes > done")
        _script(
            folder / "tests" / "test.sh",
            'if [ "$(cat done)" = yes ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt',
        )
        return folder

    return make


def _script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def make_attempt(tmp_path: Path) -> Callable[..., Attempt]:
    def make(task: Path, number: int = 0) -> Attempt:
        folder = tmp_path / "results" / task.name / f"trial_{number}.attempt_1"
        folder.mkdir(parents=True)
        return Attempt(Trial(Instance(task.name, task), number), 1, folder)

    return make
