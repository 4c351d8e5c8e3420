# shellcheck shell=bash disable=SC2034
# Children of the launcher: each leads a session of its own, so that a signal to the launcher's group reaches the
# launcher alone; it passes the signal on, and waits in a way that lets signals through at once.

repository=${repository:?set it before this is sourced}
# shellcheck source=scripts/lib/log.sh
source "$repository/scripts/lib/log.sh"

python=""     # our own
launch_id=""  # marks every process of a launch, from the lock on
model_key=""  # of this launch's model server; never in a command line or a file, and for server and gateway alone
status=0      # exit status of the child that was awaited last
interrupted=0 # the exit status that the first signal asks for; 0: none came
deadline=0    # in SECONDS: what is being waited for is killed then; 0: never
step=""       # session leader of the step that is being waited for
driver=""
server=""
gateway=""

# Seconds that each part is given to end, half a minute in all; a signal that comes again leaves the driver less, and
# what comes last is the sweep.
driver_sec=12 hurry_sec=6 gateway_sec=3 server_sec=5 hurried_server_sec=3 sweep_sec=7

kept_names=" PATH HOME USER LOGNAME SHELL LANG TZ TMPDIR TERM COLUMNS LINES NO_COLOR LD_LIBRARY_PATH XDG_RUNTIME_DIR"
kept_names+=" XDG_CACHE_HOME SSL_CERT_FILE SSL_CERT_DIR HF_HOME TORCH_HOME"
kept_names+=" PYTHONPATH ROLLOUTGEN_LAUNCH ROLLOUTGEN_MODEL_KEY "

# Become a command of our own Python (`ours -m rolloutgen ...`), in a session of its own and with an environment of few names.
ours() {
  local name
  for name in $(compgen -e); do
    [[ $kept_names == *" $name "* || $name == @(LC|CUDA|NVIDIA|NCCL|GLOO|OPENBLAS|TRITON)_* ]] || export -n "${name?}"
  done
  export PYTHONPATH=$repository/src
  [[ -z $launch_id ]] || export ROLLOUTGEN_LAUNCH=$launch_id
  exec setsid "$python" -P "$@" 6>&- 7>&- 8>&-
}

# Become another program, with the caller's environment and without the lock.
foreign() {
  exec setsid "$@" 6>&- 7>&- 8>&- 9>&-
}

alive() {
  kill -0 "$1" 2>/dev/null
}

signal_session() {
  kill -s "$1" -- "-$2" 2>/dev/null || kill -s "$1" "$2" 2>/dev/null || :
}

catch_signals() {
  trap 'on_signal TERM 143' TERM
  trap 'on_signal INT 130' INT # has no effect where it was ignored on entry; nor has this:
  trap 'on_signal HUP 129' HUP
  trap : PIPE # whoever reads along may stop; children do not inherit this
}

# What is being waited for has so many seconds from now, or less.
hasten() {
  ((deadline != 0 && deadline <= SECONDS + $1)) || deadline=$((SECONDS + $1))
}

# Pass a signal on. The first starts the end; a second makes the children hurry, and they clean up all the same.
on_signal() {
  local forwarded=$1
  [[ $1 != HUP ]] || forwarded=TERM
  if ((interrupted == 0)); then
    interrupted=$2
    hasten "$driver_sec"
    reason="interrupted by SIG$1; the same command goes on from here"
    say "SIG$1: ending; what was done stays done"
    mark_ending
  else
    hasten "$hurry_sec"
    say "SIG$1: hurrying"
    [[ -z $server ]] || kill -s TERM "$server" 2>/dev/null || :
  fi
  [[ -z $step ]] || signal_session TERM "$step"
  [[ -z $driver ]] || kill -s "$forwarded" "$driver" 2>/dev/null || :
}

# Wait until one of the processes has ended, or until the deadline. Looks every second: no end and no signal is missed.
await_any() {
  local pid
  while ((deadline == 0 || SECONDS < deadline)); do
    for pid; do alive "$pid" || return 0; done
    sleep 1 >/dev/null 2>&1 6>&- 7>&- 8>&- 9>&- &
    wait -n "$@" "$!" || :
  done
}

# Wait until a session leader has ended, and kill its session at the deadline. `status` is its exit status then.
await() {
  await_any "$1"
  if alive "$1"; then
    signal_session KILL "$1"
    deadline=$((SECONDS + 5))
    await_any "$1"
  fi
  status=137
  if ! alive "$1"; then wait "$1" && status=0 || status=$?; fi
}

# Run a command and wait for it; its exit status is in `status`, and only a signal ends the launcher here.
attend() {
  "$@" </dev/null &
  step=$!
  await "$step"
  step=""
}

attempt_step() {
  ((interrupted == 0)) || exit "$interrupted"
  attend "$@"
  ((interrupted == 0)) || exit "$interrupted"
}

# The same for what people are to read: it goes to stderr and into the log.
attempt_told() {
  local teller
  exec 8> >(trap '' TERM INT HUP PIPE && exec tee -a -- "${log_file:?}" >&7 6>&- 9>&-)
  teller=$!
  attempt_step "$@" >&8 2>&1
  exec 8>&-
  wait "$teller" || :
}
