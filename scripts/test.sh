#!/usr/bin/env bash
# Usage: bash scripts/test.sh [--quick] [PYTEST ARGUMENTS]
#
# Makes the environments that are missing, then runs every check of this project: shellcheck, shfmt, ruff, mypy, the
# import contract, and all tests, with a real model server and a real small model.
#
#   --quick   leaves out the tests that take minutes (mark slow); no model server is needed then
#
# Real task inputs come from $TEST_INPUTS, else from ../shared beside the repository; tests that need them are skipped,
# with the reason, where they are absent. A command after the checks: bash scripts/test.sh --quick tests/results
set -euo pipefail

unset CDPATH
repository=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/lib/environments.sh
source "$repository/scripts/lib/environments.sh"

step() {
  printf '\n== %s\n' "$*" >&2
}

shell_scripts() {
  git -C "$repository" ls-files -co --exclude-standard -- '*.sh' .ci/run | while IFS= read -r file; do
    [[ ! -f "$repository/$file" ]] || printf '%s\n' "$repository/$file"
  done
}

check_shell() {
  local files
  mapfile -t files < <(shell_scripts)
  ((${#files[@]})) || refuse "git lists no shell scripts in $repository: it must be a clone that git reads (see above)"
  step shellcheck
  "$bin/shellcheck" --external-sources --source-path="$repository" "${files[@]}"
  step shfmt
  "$bin/shfmt" -d -i 2 -ci "${files[@]}"
}

check_python() {
  step ruff
  "$bin/ruff" check .
  "$bin/ruff" format --check .
  step mypy
  "$bin/python" -m mypy
  step 'import contract'
  PYTHONPATH=src "$bin/lint-imports"
}

run_tests() {
  step pytest
  "$bin/python" -m pytest "$@"
}

_main() {
  local quick=0
  case "${1-}" in
    -h | --help)
      sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
      return 0
      ;;
    --quick)
      quick=1
      shift
      ;;
  esac
  cd "$repository"
  ensure_product_env dev
  bin=$repository/.venv/bin
  if ((quick)); then
    set -- -m 'not slow and not k8s' "$@"
  else
    ensure_vllm_env
    VLLM_PYTHON=$repository/.venv-vllm/bin/python bash scripts/models/make_smollm2.sh .cache/models/smollm2-135m-instruct
  fi
  check_shell
  check_python
  run_tests "$@"
}

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
  _main "$@"
fi
