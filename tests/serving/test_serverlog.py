"""What is shown of the server's log: lines as vLLM writes them."""

from pathlib import Path

import pytest

from rolloutgen.serving.serverlog import advice, evidence, first_error, read_from

LOG = """\
=== launch 1: vllm serve /models/m
(APIServer pid=1) INFO 11-29 22:13:39 [api_utils.py:347] version 0.32.0
(Worker pid=3) ERROR 11-29 22:14:19 [multiproc_executor.py:1063] WorkerProc hit an exception.
(Worker pid=3) ERROR 11-29 22:14:19 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker pid=3) ERROR 11-29 22:14:19 [multiproc_executor.py:1063]   File "executor.py", line 1055, in _execute
(Worker pid=3) ERROR 11-29 22:14:19 [multiproc_executor.py:1063]     output = func(*args, **kwargs)
(Worker pid=3) ERROR 11-29 22:14:19 [multiproc_executor.py:1063]              ^^^^^^^^^^^^^^^^^^^^^
(Worker pid=3) ERROR 11-29 22:14:19 [multiproc_executor.py:1063] torch.OutOfMemoryError: CUDA out of memory.
(EngineCore pid=2) ERROR 11-29 22:14:20 [core.py:9] EngineCore failed to start.
(EngineCore pid=2) Traceback (most recent call last):
(EngineCore pid=2)   File "core.py", line 3, in run
(EngineCore pid=2) RuntimeError: Engine core initialization failed. See root cause above.
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "vllm.log"
    path.write_text(LOG)
    return path


def test_the_first_error_is_the_one_that_matters(log: Path) -> None:
    lines = read_from(log, 0)
    assert first_error(lines) == "torch.OutOfMemoryError: CUDA out of memory."
    assert evidence(lines) == [
        "Traceback (most recent call last):",
        '  File "executor.py", line 1055, in _execute',
        "    output = func(*args, **kwargs)",
        "torch.OutOfMemoryError: CUDA out of memory.",
    ]
    assert "GEN_TP" in advice(first_error(lines))


def test_an_earlier_launch_is_not_blamed(log: Path) -> None:
    offset = log.stat().st_size
    with log.open("a") as file:
        file.write("=== launch 2\nvllm serve: error: argument --max-model-len: invalid value: 'abc'\n")
    lines = read_from(log, offset)
    assert first_error(lines).startswith("vllm serve: error: argument")
    assert "VLLM_EXTRA_ARGS" in advice(first_error(lines))


def test_without_an_error_the_last_lines_are_shown(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert evidence(read_from(log, 0))[-1] == "line 99"
    assert first_error(read_from(log, 0)) == ""
    assert read_from(tmp_path / "none", 0) == []


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("OSError: [Errno 98] Address already in use", "VLLM_PORT"),
        ("ValueError: To serve at least one request, 3.5 GiB KV cache is needed", "VLLM_MAX_MODEL_LEN"),
        ("ValueError: Model architectures ['NewLM'] are not supported for now", "VLLM_BIN"),
        ("ValueError: Total number of attention heads (9) must be divisible by tensor parallel size (2).", "GEN_TP"),
    ],
)
def test_known_errors_come_with_advice(line: str, key: str) -> None:
    assert key in advice(line)
