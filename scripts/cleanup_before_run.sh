#!/usr/bin/env bash
# Remove what dead launches left on this host: processes, control groups, their records in logs/.launches.
#
# usage: bash scripts/cleanup_before_run.sh [CONFIG]
#
#   CONFIG      only what launches of this config's run (its RESULTS_DIR) left; without it, what all dead launches left
#   -h, --help  show this
#
# A launch is dead when its infer.sh is. What ends by itself is given 40 seconds. Live launches and RESULTS_DIR are not
# touched: a run after it resumes. infer.sh does the same for its own run at every start.
# exit: 0 done, 2 usage or a config that cannot be read.

set -euo pipefail

unset CDPATH
repository=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/lib/python.sh
source "$repository/scripts/lib/python.sh"

_main() {
  case ${1-} in
    -h | --help)
      sed -n '2,/^$/{s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
      return
      ;;
    -*) set -- too many ;;
  esac
  if (($# > 1)) || [[ $# == 1 && ! -f $1 ]]; then
    printf 'usage: bash scripts/cleanup_before_run.sh [CONFIG]; CONFIG is a file\n' >&2
    exit 2
  fi
  VENV_PATH=${1:+$(venv_path_of "$1")}
  export VENV_PATH
  bash "$repository/scripts/lib/environments.sh" product
  PYTHONPATH=$repository/src exec "$(python_of "$VENV_PATH")" -P -m rolloutgen cleanup "$@"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  _main "$@"
fi
