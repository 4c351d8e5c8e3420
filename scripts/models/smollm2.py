"""Turn a quantized GGUF file into a checkpoint folder: weights in bfloat16, config, tokenizer and chat template.

Usage: smollm2.py FILE.gguf FOLDER. Run by make_smollm2.sh with the Python of vLLM's environment.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging


def main(source: Path, target: Path) -> None:
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    if not tokenizer.chat_template:
        sys.exit(f"{source} carries no chat template")
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
