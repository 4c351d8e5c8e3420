# shellcheck shell=bash
# The Python environments, made where they are missing. Sourced by infer.sh and test.sh.
#
#   ensure_product_env [dev]  our own, in .venv (dev: with what the tests need); VENV_PATH: that one is checked instead
#   ensure_vllm_env           vLLM's own, in .venv-vllm: CUDA build where a GPU is seen, CPU build otherwise;
#                             VLLM_BIN: that command is checked instead
#   product_python, vllm_bin  print the paths of the two
#
# Each is built in place from a lock file, and its stamp is written last: an environment without the stamp of its lock
# is made anew, so a kill half way costs the time alone. Two runs at once wait for each other. Once they stand no
# network is used. All words go to stderr.
set -euo pipefail

unset CDPATH
environments_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)" # one place, whatever link leads to it
environments_locks="$environments_root/scripts/locks"

say() {
  printf 'environments: %s\n' "$*" >&2
}

refuse() {
  say "$*"
  exit 2
}

in_root() {
  case "$1" in
    /*) printf '%s\n' "$1" ;;
    *) printf '%s/%s\n' "$environments_root" "$1" ;;
  esac
}

product_python() {
  printf '%s/bin/python\n' "$(in_root "${VENV_PATH:-.venv}")"
}

vllm_bin() {
  in_root "${VLLM_BIN:-.venv-vllm/bin/vllm}"
}

# shellcheck source=scripts/lib/vllm_environment.sh
source "$environments_root/scripts/lib/vllm_environment.sh"

# --- which Python

# candidates NAME...: every file of these names on PATH, then under pyenv.
candidates() {
  local name
  for name in "$@"; do
    type -aP "$name" || true
    compgen -G "${PYENV_ROOT:-${HOME:-/nonexistent}/.pyenv}/versions/*/bin/$name" || true
  done
}

# works PYTHON LOWEST HIGHEST: print its true path if it runs (pyenv's shims may not), is of such a version, and can make
# environments.
works() {
  "$1" -c "
import sys, venv, ensurepip
print(getattr(sys, '_base_executable', sys.executable))
sys.exit(not ($2) <= sys.version_info[:2] <= ($3))" 2>/dev/null </dev/null
}

# find_python LOWEST HIGHEST NAME...: the first that works; versions as '3, 12'.
find_python() {
  local lowest=$1 highest=$2 candidate python
  shift 2
  while IFS= read -r candidate; do
    if python="$(works "$candidate" "$lowest" "$highest")"; then
      printf '%s\n' "$python"
      return 0
    fi
  done < <(candidates "$@")
  return 1
}

# find_uv: uv on PATH, else one in a private environment.
find_uv() {
  local python home="$environments_root/.cache/uv"
  if uv --version >/dev/null 2>&1; then
    type -P uv
    return 0
  fi
  if [[ ! -x $home/bin/uv ]]; then
    python="$(find_python '3, 8' '3, 99' python3 python3.13 python3.12 python3.11)" || return 1
    say "bringing uv to $home"
    "$python" -m venv "$home" >&2 && quiet_pip "$home/bin/python" install uv || return 1
  fi
  printf '%s\n' "$home/bin/uv"
}

quiet_pip() {
  local python=$1
  shift
  PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 "$python" -m pip -qq "$@" >&2 </dev/null
}

# --- stamps

# stamp_of ENV LOCK: what the stamp must hold: the lock's content and the place (scripts in an environment name it).
stamp_of() {
  { cat "$2" && printf '%s\n' "$1"; } | sha256sum | cut -d' ' -f1
}

stands() {
  local env=$1 stamp=$2 lock=$3
  [[ -x $env/bin/python && -f $env/$stamp ]] && [[ "$(head -n 1 "$env/$stamp")" == "$(stamp_of "$env" "$lock")" ]]
}

write_stamp() {
  local env=$1 stamp=$2 lock=$3
  { stamp_of "$env" "$lock" && "$env/bin/python" -VV; } >"$env/.new-stamp"
  sync "$env/.new-stamp"
  mv "$env/.new-stamp" "$env/$stamp"
}

# once ENV STAMP LOCK BUILD: run BUILD ENV unless the environment stands; one run at a time, the others wait.
once() {
  if stands "$1" "$2" "$3"; then return 0; fi
  mkdir -p "$environments_root/.cache"
  make_guarded "$@" 9>>"$(use_lock_of "$1")"
}

# use_lock_of ENV: who makes it holds this file's lock, and each launch that runs with it holds it shared.
use_lock_of() {
  printf '%s/.cache/%s.lock' "$environments_root" "$(basename "$1")"
}

# A Bash of its own builds: whoever calls us in a condition has switched errexit off for all that runs in this one.
# It inherits the lock: where we alone are killed, nobody builds in its place before it has ended.
make_guarded() {
  local began=$SECONDS
  if ! flock --nonblock 9; then
    if flock --shared --nonblock 9; then
      [[ $4 == add_* ]] || refuse "$1 was made from another lock file than $3, and launches that run now use it:" \
        "start again when they have ended, or name another environment in VENV_PATH or VLLM_BIN"
    else
      say "another run is making $1; waiting for it"
      flock 9
    fi
  fi
  if stands "$1" "$2" "$3"; then return 0; fi
  bash "$environments_root/scripts/lib/environments.sh" build "$4" "$1" || exit "$?"
  write_stamp "$1" "$2" "$3" || refuse "$1/$2 could not be written"
  say "$1 is ready after $((SECONDS - began)) s"
}

# --- our own

ensure_product_env() {
  local env="$environments_root/.venv"
  if [[ -n ${VENV_PATH:-} ]]; then
    check_product_env
    return 0
  fi
  once "$env" .complete "$environments_locks/product.txt" build_product_env
  if [[ ${1:-} == dev ]]; then
    once "$env" .complete-dev "$environments_locks/dev.txt" add_dev
  fi
}

build_product_env() {
  local env=$1
  say "making $env (about a minute)"
  rm -rf "$env"
  new_product_env "$env"
  quiet_pip "$env/bin/python" install --no-deps --no-compile --requirement "$environments_locks/product.txt" ||
    refuse "the packages of scripts/locks/product.txt could not be installed (see above)"
  link_package "$env"
}

new_product_env() {
  local env=$1 python uv
  if python="$(find_python '3, 12' '3, 99' python3.12 python3.13 python3.14 python3)"; then
    say "with $python"
    "$python" -m venv "$env"
  elif uv="$(find_uv)"; then
    say "with a Python 3.12 that uv brings"
    "$uv" venv --quiet --seed --python 3.12 "$env" >&2 || refuse "uv could bring no Python 3.12; $(product_advice)"
  else
    refuse "$(product_advice)"
  fi
}

product_advice() {
  printf 'no Python 3.12 or newer (with its venv module) is on PATH or under pyenv: install one, or uv, '
  printf 'or name an environment in VENV_PATH'
}

add_dev() {
  say "adding the packages of scripts/locks/dev.txt to $1"
  quiet_pip "$1/bin/python" install --no-deps --no-compile --requirement "$environments_locks/dev.txt" ||
    refuse "the packages of scripts/locks/dev.txt could not be installed (see above)"
}

# link_package ENV: our package is used where it lies; nothing is built for it.
link_package() {
  local env=$1 packages
  packages="$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  printf '%s\n' "$environments_root/src" >"$packages/rolloutgen.pth"
  printf '#!/bin/sh\nexec "%s/bin/python" -m rolloutgen "$@"\n' "$env" >"$env/bin/rolloutgen"
  chmod +x "$env/bin/rolloutgen"
}

check_product_env() {
  local python harbor
  python="$(product_python)"
  harbor="$(sed -n 's/^harbor==//p' "$environments_locks/product.txt")"
  "$python" -c "
import sys
from importlib.metadata import version
sys.exit(sys.version_info < (3, 12) or version('harbor') != '$harbor')" 2>/dev/null </dev/null ||
    refuse "VENV_PATH=$VENV_PATH: $python is no Python 3.12+ with harbor $harbor; " \
      "install scripts/locks/product.txt there, or unset VENV_PATH"
}

_main() {
  case "${1:-}" in
    product) ensure_product_env "${2:-}" ;;
    vllm) ensure_vllm_env ;;
    build) "$2" "$3" ;;
    *) refuse "usage: environments.sh product [dev] | vllm" ;;
  esac
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  _main "$@"
fi
