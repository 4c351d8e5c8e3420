"""Checks that ask the installed vLLM, and the comparison of what would be measured with what was."""

from collections.abc import Iterator
from typing import Final

from rolloutgen.errors import Finding
from rolloutgen.paths import ResultsPaths
from rolloutgen.preflight.check import Check, Context, fatal, ok, warn
from rolloutgen.results.fingerprint import compare, configured, fingerprint, read_run, without_model
from rolloutgen.serving import check_command_line, gpus_seen, vllm_bin, vllm_version
from rolloutgen.settings import KNOBS, Settings

_STAMP: Final = ".complete"
"""What scripts/lib/environments.sh leaves in an environment that it has made whole."""


def _command_line(context: Context) -> Iterator[Finding]:
    """The installed vLLM's own parser reads our command line: a flag of another version shows in seconds."""
    settings = context.settings
    if not is_made(settings):
        yield ok("vLLM", f"{vllm_bin(settings).parents[1]} will be made: about 5 minutes and 3.5 GB, once")
    elif not _model_is_there(settings):
        yield ok("vLLM", "its command line is checked when the model is there")
    else:
        yield from check_command_line(settings, gpus_seen())


def is_made(settings: Settings) -> bool:
    """Whether there is a vLLM to ask; a VLLM_BIN that is missing is not made, but wrong."""
    return settings.vllm_bin is not None or (vllm_bin(settings).parents[1] / _STAMP).exists()


def _model_is_there(settings: Settings) -> bool:
    return settings.model_path is not None and settings.model_path.is_dir()


def _fingerprint(context: Context) -> Iterator[Finding]:
    """One RESULTS_DIR is one measurement: a resume that differs is refused, naming the keys."""
    settings = context.settings
    run = read_run(ResultsPaths(settings.results_dir).run_json)
    if run is None:
        if context.plan is not None and context.plan.scan.n_done:
            yield fatal(
                "RESULTS_DIR",
                f"{settings.results_dir} holds verdicts, but no run.json that says what was measured",
                "bring run.json back, or measure anew in another RESULTS_DIR",
            )
        return
    whole = not settings.uses_model or (is_made(settings) and _model_is_there(settings))
    if whole:
        differences = compare(run.fingerprint, current_fingerprint(settings))
    else:
        differences = compare(without_model(run.fingerprint), configured(settings))
        yield warn("RESULTS_DIR", "its model and vLLM are not compared with this config's before those are there")
    for line in differences:
        yield fatal(
            line.partition(":")[0],
            f"{line.partition(': ')[2]}: not the measurement that {settings.results_dir} holds",
            "set it back, or measure anew in another RESULTS_DIR",
        )
    if whole and not differences:
        yield ok("RESULTS_DIR", f"run {run.run_id}: the same measurement as before")


def current_fingerprint(settings: Settings) -> dict[str, object]:
    """What would be measured now. Raises FindingsError (vLLM) and StoreError (the model)."""
    return fingerprint(settings, vllm_version(settings) if settings.uses_model else None)


def _is_measured(key: str) -> bool:
    return KNOBS[key].measures or key in ("MODEL_PATH", "RESULTS_DIR", "VLLM_BIN")


CHECKS: Final = (
    Check("vLLM", _command_line, tuple(k for k in KNOBS if KNOBS[k].scope == "model"), model=True, work=True),
    Check("fingerprint", _fingerprint, tuple(filter(_is_measured, KNOBS)), plan=True),
)
