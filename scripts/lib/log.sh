# shellcheck shell=bash disable=SC2034
# What the launcher says: to people on fd 7, and into the run's log once that is open (log_file). fd 6 and 7 are its own
# stdout and stderr, whatever a step's output goes to. A lost terminal must not end a run: nothing here fails.

exec 6>&1 7>&2
log_file=""
reason="" # why the run ends as it does, for its last line

say() {
  local line
  printf -v line '%(%H:%M:%S)T %s' -1 "$*"
  printf '%s\n' "$line" 2>/dev/null >&7 || :
  note "$line"
}

# Into the log alone.
note() {
  [[ -z $log_file ]] || printf '%s\n' "$*" 2>/dev/null >>"$log_file" || :
}

# What is wrong, and how to mend it; then the end with the status for "nothing was started".
refuse() {
  say "FATAL $1"
  [[ $# -lt 2 ]] || say "      -> $2"
  reason=$1
  exit 2
}
