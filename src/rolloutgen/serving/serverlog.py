"""What the server's log says about its end: the first error, not the last of the many that follow from it."""

import re
from pathlib import Path
from typing import Final

_READ_MAX: Final = 8 * 2**20
_LINES: Final = 15
_PREFIX: Final = re.compile(r"^(\([A-Za-z0-9_ ]+ pid=\d+\) ?)?([A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?)?")
_ERROR: Final = re.compile(r"^([A-Za-z_]\w*\.)*[A-Za-z_]\w*(Error|Exception|Interrupt|Exit)(: |$)|^vllm[^:]*: error: ")
_TRACEBACK: Final = "Traceback (most recent call last)"

_ADVICE: Final[tuple[tuple[str, str], ...]] = (
    (r"[Aa]ddress already in use", "another program took the port; unset VLLM_PORT, or name a free one"),
    (
        r"KV cache is needed|larger than the (maximum|available|estimated)|No available memory for the cache",
        (
            "the context does not fit: lower VLLM_MAX_MODEL_LEN or raise GPU_MEMORY_UTILIZATION (on a CPU set "
            "VLLM_ENV='VLLM_CPU_KVCACHE_SPACE=<GiB>')"
        ),
    ),
    (
        r"out of memory|OutOfMemory|Free memory on device|requested memory for kv|Cannot allocate memory",
        "the memory does not suffice: end what else uses it, lower GPU_MEMORY_UTILIZATION or raise GEN_TP",
    ),
    (r"architectures? .*(not supported|are not)", "this vLLM does not know the model: use a newer one (VLLM_BIN)"),
    (r"does not recognize this architecture", "this vLLM does not know the model: use a newer one (VLLM_BIN)"),
    (r"divisible by tensor parallel", "GEN_TP must divide the model's attention heads"),
    (r"unrecognized arguments|error: argument", "see VLLM_EXTRA_ARGS"),
)


def advice(text: str) -> str:
    """How to mend what ``text`` says; empty where it is not known."""
    return next((hint for pattern, hint in _ADVICE if re.search(pattern, text)), "")


def read_from(log: Path, offset: int) -> list[str]:
    """The lines since ``offset`` (the last 8 MiB of them), without vLLM's prefixes."""
    try:
        with log.open("rb") as file:
            file.seek(max(offset, file.seek(0, 2) - _READ_MAX))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [_PREFIX.sub("", line.rstrip()) for line in text.splitlines()]


def evidence(lines: list[str]) -> list[str]:
    """The lines that matter: the first error with the end of its traceback, else the last lines of all."""
    at = next((number for number, line in enumerate(lines) if _ERROR.match(line)), None)
    if at is None:
        return [line for line in lines if line][-_LINES:]
    first = max(at - _LINES + 1, 0)
    starts = [number for number in range(first, at) if _TRACEBACK in lines[number]]
    return [line for line in lines[(starts[-1] if starts else max(first, at - 2)) : at + 1] if line.strip(" ^~")]


def first_error(lines: list[str]) -> str:
    """The line of the first error; empty where there is none."""
    return next((line for line in lines if _ERROR.match(line)), "")
