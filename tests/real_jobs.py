"""Runs of shipped configs with every part real: vLLM, the small model, sandboxes, tasks."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from driving import REPOSITORY, Site

DEMO = REPOSITORY / "scripts" / "infer" / "configs" / "demo.env"
MODEL = REPOSITORY / ".cache" / "models" / "smollm2-135m-instruct"
VLLM = REPOSITORY / ".venv-vllm" / "bin" / "vllm"


@dataclass
class DemoSite(Site):
    """The demo's own config; only ``keys`` and where the results and the log go differ."""

    @property
    def config(self) -> Path:
        text = DEMO.read_text()
        keys = {"EXP_NAME": self.exp, "RESULTS_DIR": str(self.results), "OUTPUT_INDEX": str(self.selected)} | self.keys
        for key in keys:
            text = re.sub(rf"^{key}=.*\n", "", text, flags=re.MULTILINE)
        path = self.folder / "run.env"
        path.write_text(text + "".join(f"{key}={value}\n" for key, value in keys.items()))
        return path


def need_real_parts() -> None:
    for path, how in ((VLLM, "bash scripts/lib/environments.sh vllm"), (MODEL, "scripts/models/make_smollm2.sh")):
        if not path.exists():
            pytest.skip(f"{path} is missing: {how}")
