"""What a dry run shows beyond the preflight: the exact command lines and a forecast. Starts nothing, writes nothing."""

import shlex
import sys
from pathlib import Path

from rolloutgen.forecast import forecast
from rolloutgen.plan import Plan
from rolloutgen.report import masked_command
from rolloutgen.serving import command_line, gpus_seen
from rolloutgen.settings import Settings


def command_lines(settings: Settings, config: Path) -> list[str]:
    """As they will be, but for what each launch chooses anew (its id, free ports, vLLM's seed)."""
    driver = "driver: " + _of_ours("run", config)
    if not settings.uses_model:
        return [driver, "server: none, since the scaffold asks no model"]
    server = command_line(settings, settings.vllm_port or 0, gpus_seen(), seed=0)
    notes = " (each start takes a fresh --seed" + ("" if settings.vllm_port else " and a free --port") + ")"
    return ["server: " + masked_command(server) + notes, "gateway: " + _of_ours("gateway", config), driver]


def _of_ours(name: str, config: Path) -> str:
    line = [sys.executable, "-m", "rolloutgen", name, str(config.absolute()), "--launch", "DIR", "--launcher", "PID"]
    return shlex.join(line)


def forecast_lines(plan: Plan) -> list[str]:
    lines = forecast(plan).lines()
    if plan.n_exhausted:
        lines.append(f"{plan.n_exhausted} of the owed trials have used up their attempts and are not tried")
    return lines
