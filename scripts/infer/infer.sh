#!/usr/bin/env bash
# Measure how hard the tasks of an index are for one frozen model.
#
# usage: bash scripts/infer/infer.sh [--dry-run] CONFIG
#
#   CONFIG      a Bash file of assignments; begin with: cp scripts/infer/_template.env scripts/infer/configs/my_infer.env
#   --dry-run   resolve, check and report everything, and launch nothing; exit 0 only if a real run would start
#   -h, --help  show this
#
# It makes what is missing (Python environments, and the model where MODEL_SETUP says how), starts one model server, the
# gateway before it and the driver, and ends them. Start the same command again to resume: complete trials are skipped.
# Stop it with kill or Ctrl-C.
# Without a terminal: nohup setsid bash scripts/infer/infer.sh CONFIG > logs/infer.out 2>&1 &
#
# stdout: the last line; stderr: the story; logs/<exp>.log: the record, appended across launches.
# exit: 0 every trial has a verdict; 3 finished, some trials without one; 2 usage, config or a check: nothing was started;
#       1 failed; 129, 130, 143 interrupted. After all but 2 the same command goes on where it stopped.

set -euo pipefail

unset CDPATH # with it, cd may go elsewhere, and prints where
repository=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=scripts/lib/launch.sh
source "$repository/scripts/lib/launch.sh"
# shellcheck source=scripts/lib/lock.sh
source "$repository/scripts/lib/lock.sh"
# shellcheck source=scripts/lib/python.sh
source "$repository/scripts/lib/python.sh"
caller_names=$(compgen -e)
unset PYTHONPATH ROLLOUTGEN_LAUNCH ROLLOUTGEN_MODEL_KEY
VENV_PATH="" VLLM_BIN=""

dry_run=""
locked=""
tells_end=""

show_help() {
  sed -n '2,/^$/{s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
}

parse_arguments() {
  while (($#)); do
    case $1 in
      --dry-run) dry_run=1 ;;
      -h | --help) show_help && exit 0 ;;
      -*) refuse "unknown option: $1" "bash scripts/infer/infer.sh --help" ;;
      *)
        [[ -z $config ]] || refuse "one CONFIG, not two: $config, $1" "bash scripts/infer/infer.sh --help"
        config=$1
        ;;
    esac
    shift
  done
  [[ -n $config ]] || refuse "no CONFIG is named" "bash scripts/infer/infer.sh [--dry-run] CONFIG"
  [[ ! -d $config ]] || refuse "CONFIG=$config is a folder" "name a file, like scripts/infer/configs/demo.env"
  [[ -f $config ]] || refuse "CONFIG=$config does not exist, or is not a file" "cp scripts/infer/_template.env $config"
  [[ -r $config ]] || refuse "CONFIG=$config cannot be read: permission denied" "chmod u+r $config"
}

look_at_machine() {
  local name
  for name in setsid flock timeout; do
    type -P "$name" >/dev/null || refuse "the command $name is not on PATH" "install it: util-linux and coreutils have all that is needed"
  done
  scratch=$(mktemp -d 2>/dev/null) ||
    refuse "TMPDIR=${TMPDIR-} is no folder in which files can be made" "unset TMPDIR (then it is /tmp), or name another"
}

find_python() {
  VENV_PATH=$(venv_path_of "$config")
  attempt_step environment product
  ((status == 0)) || end_refused "there is no Python environment for this program (see above)"
  python=$(python_of "$VENV_PATH")
  if [[ -z $VENV_PATH ]]; then keep_environment .venv; fi
}

# Nobody makes an environment anew while this launch, its server, gateway or driver run with it: they hold its lock, shared.
keep_environment() {
  local held
  { exec {held}>>"$repository/.cache/$1.lock"; } 2>/dev/null || return 0 # a read-only place: nobody makes it anew there
  flock --shared --nonblock "$held" || :
}

environment() {
  export VENV_PATH VLLM_BIN
  foreign bash "$repository/scripts/lib/environments.sh" "$@" >&7
}

# What the config says, as far as the launcher needs it; with anything wrong, all of it is shown.
resolve() {
  local key value
  attempt_step ours -m rolloutgen resolve "$config" >"$scratch/resolved" 2>"$scratch/errors"
  if ((status != 0)); then
    attempt_step ours -m rolloutgen check "$config" ${dry_run:+--dry-run}
    ((status != 0)) || cat -- "$scratch/errors" >&7
    reason="the config cannot be used"
    exit 2
  fi
  while IFS= read -r -d '' value; do
    key=${value%%=*}
    printf -v "$key" '%s' "${value#*=}"
  done <"$scratch/resolved"
}

drop_callers_keys() {
  local key dropped=""
  for key in $KEYS; do
    [[ $'\n'$caller_names$'\n' != *$'\n'"$key"$'\n'* ]] || dropped+=" $key"
  done
  [[ -z $dropped ]] || say "WARN  not taken from the environment (only CONFIG counts):$dropped"
}

show_dry_run() {
  attempt_step ours -m rolloutgen check "$config" --dry-run
  ((status == 0 || status == 10)) || exit "$status"
  look_at_lock
}

begin_launch() {
  launch_id=$(date -u +%Y%m%dt%H%M%S)-$(od -An -N3 -tx1 /dev/urandom | tr -d ' \n')
  take_lock
  locked=1
  launch_dir=$LAUNCHES/$launch_id
  if ! { mkdir -p -- "$launch_dir" "${LOG%/*}" && : >>"$LOG"; } 2>/dev/null; then
    refuse "the log $LOG cannot be written" "mend the permissions of ${LOG%/*}, or make room there"
  fi
  log_file=$LOG
  note "=== launch $launch_id: $(date -u +%Y-%m-%dT%H:%M:%SZ) on $(host_name), pid $$, config $config ==="
}

# vLLM's environment and the model. Where one is missing, a check comes first: what would be refused, or owes nothing, makes
# nothing.
make_policy() {
  local vllm=${VLLM_BIN:-$repository/.venv-vllm/bin/vllm}
  [[ $USES_MODEL == 1 ]] || return 0
  if [[ (-z $VLLM_BIN && ! -e $repository/.venv-vllm/.complete) || ! -e $MODEL_PATH ]]; then
    attempt_step ours -m rolloutgen check "$config" >"$scratch/check" 2>&1
    ((status != 10)) || return 0
    if ((status != 0)); then
      cat -- "$scratch/check" >&7
      end_refused "a check found what must be mended first"
    fi
  fi
  if [[ -z $VLLM_BIN ]]; then
    attempt_step environment vllm
    ((status == 0)) || end_refused "vLLM's environment could not be made (see above)"
    keep_environment .venv-vllm
  fi
  if [[ ! -e $MODEL_PATH && -n $MODEL_SETUP ]]; then
    say "making the model: $MODEL_SETUP $MODEL_PATH"
    VLLM_PYTHON=${vllm%/*}/python attempt_step make_model
    ((status == 0)) || end_failed "MODEL_SETUP=$MODEL_SETUP ended with status $status"
  fi
}

make_model() {
  foreign bash "$MODEL_SETUP" "$MODEL_PATH" >&7
}

# The one way out, whatever happened: end what runs, then say in the last line how it went.
finish() {
  local code=$?
  trap - EXIT
  set +e
  exec 1>&6 8>&-
  ((interrupted == 0)) || code=$interrupted
  [[ -z $locked ]] || mark_ending
  if [[ -n $driver ]]; then stop_driver; fi
  if [[ -n $gateway ]]; then stop_gateway; fi
  if [[ -n $server ]]; then stop_server; fi
  if [[ -n $launch_dir ]]; then end_launch; fi
  if [[ -n $tells_end ]]; then show_end "$code"; fi
  if [[ -n $scratch ]]; then rm -rf -- "$scratch"; fi
  exit "$code"
}

show_end() {
  local line
  case $1 in
    0) line="=== inference done: results=$RESULTS_DIR  selected=$OUTPUT_INDEX ===" ;;
    3 | 129 | 130 | 143) line="=== inference incomplete: ${reason:-interrupted} (exit $1) ===" ;;
    *) line="=== inference failed: ${reason:-see above} (exit $1) ===" ;;
  esac
  printf '%s\n' "$line" 2>/dev/null || :
  note "$line"
}

_main() {
  parse_arguments "$@"
  catch_signals
  trap finish EXIT
  look_at_machine
  [[ -n $dry_run ]] || tells_end=1
  find_python
  resolve
  drop_callers_keys
  if [[ -n $dry_run ]]; then
    show_dry_run
    exit 0
  fi
  begin_launch
  make_policy
  prepare
  serve_model
  open_gateway
  drive
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  _main "$@"
fi
