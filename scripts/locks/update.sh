#!/usr/bin/env bash
# Writes lock files anew from pyproject.toml; needs uv. What a lock pins stays as it is, unless pyproject.toml asks for
# another version or the package is named: scripts/locks/update.sh [PACKAGE...]
#
#   product.txt    our own environment
#   dev.txt        what the tests and checks need on top of it
#   serve.txt      vLLM for GPUs (CUDA)
#
# By hand, from an environment that works (pip freeze): serve-cpu.txt, vLLM without a GPU, which needs neither torchvision,
# torchaudio, torchcodec nor triton; smollm2.txt, what makes the demo's model.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# compile LOCK PYTHON ARGUMENTS...
compile() {
  local lock=$1 python=$2
  shift 2
  printf 'scripts/locks/%s\n' "$lock"
  uv pip compile --quiet --universal --no-header --no-annotate --python-version "$python" \
    --output-file "scripts/locks/$lock" "$@" ${upgrade[@]+"${upgrade[@]}"}
}

_main() {
  local upgrade=() package
  for package in "$@"; do upgrade+=(--upgrade-package "$package"); done
  compile product.txt 3.12 pyproject.toml
  compile dev.txt 3.12 --group dev --constraint scripts/locks/product.txt
  grep -vxFf scripts/locks/product.txt scripts/locks/dev.txt >scripts/locks/.dev.txt
  mv scripts/locks/.dev.txt scripts/locks/dev.txt
  compile serve.txt 3.11 --group serve
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  _main "$@"
fi
