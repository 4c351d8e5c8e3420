# shellcheck shell=bash
# One runner for one RESULTS_DIR (A11): flock on RESULTS_DIR/.lock, fd 9. Serve and driver inherit it, so that it is free
# only when all of a launch is gone. Its text names the owner. Needs log.sh and children.sh.

wait_for_ending_sec=45

start_time_of() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
  # shellcheck disable=SC2086  # the fields behind the name, which ends at the last parenthesis
  set -- ${stat##*) }
  printf '%s' "${20}"
}

# Not $HOSTNAME: a job may have inherited that from the machine where it was queued.
host_name() {
  cat /proc/sys/kernel/hostname
}

boot_id() {
  cat /proc/sys/kernel/random/boot_id
}

write_owner() {
  {
    printf 'launch=%s\nhost=%s\nboot_id=%s\n' "${launch_id:?}" "$(host_name)" "$(boot_id)"
    printf 'pid=%s\nstart_time=%s\n' "$$" "$(start_time_of $$)"
    printf 'since=%(%Y-%m-%dT%H:%M:%S%z)T\nconfig=%s\n' -1 "${config:?}"
  } >"$LOCK"
}

# Read the owner of a lock into the array `owner`.
read_owner() {
  local line
  owner=()
  while IFS= read -r line; do [[ $line != ?*=* ]] || owner[${line%%=*}]=${line#*=}; done <"$LOCK" || :
}

owner_is_ending() {
  [[ ! -e $LAUNCHES/${owner[launch]-}/ending ]] || return 0
  [[ ${owner[ending]-} != 1 ]] || return 0
  [[ ${owner[host]-} == "$(host_name)" && ${owner[boot_id]-} == "$(boot_id)" ]] || return 1
  [[ $(start_time_of "${owner[pid]-}") != "${owner[start_time]-}" ]]
}

describe_owner() {
  printf '%s is in use by launch %s (pid %s on %s, since %s, config %s)' "$RESULTS_DIR" \
    "${owner[launch]-?}" "${owner[pid]-?}" "${owner[host]-?}" "${owner[since]-?}" "${owner[config]-?}"
}

# Take the lock, or refuse by name of its owner. One whose owner is ending is waited for; else one second, since a dry run
# may be looking at it.
take_lock() {
  local -A owner=()
  local started=$SECONDS limit_sec waiting="" refused
  mkdir -p -- "$RESULTS_DIR" 2>/dev/null || refuse "RESULTS_DIR=$RESULTS_DIR cannot be made" "name a folder that can be written"
  while :; do
    { exec 9>>"$LOCK"; } 2>/dev/null || refuse "RESULTS_DIR=$RESULTS_DIR cannot be written" "name a folder that can be"
    refused=0
    flock --nonblock 9 || refused=$?
    ((refused <= 1)) || refuse "RESULTS_DIR=$RESULTS_DIR cannot be locked" "take a file system that knows flock"
    if ((refused == 0)) && [[ /proc/$$/fd/9 -ef $LOCK ]]; then
      write_owner
      return
    fi
    read_owner
    limit_sec=1
    if owner_is_ending; then
      limit_sec=$wait_for_ending_sec
      [[ -n $waiting ]] || say "waiting for launch ${owner[launch]-?} of this run, which is ending"
      waiting=1
    fi
    ((SECONDS - started <= limit_sec)) || refuse_lock
    attempt_step foreign sleep 0.3
  done
}

refuse_lock() {
  if owner_is_ending; then
    refuse "$(describe_owner); it is ending, but does not end" "bash scripts/cleanup_before_run.sh $config"
  fi
  refuse "$(describe_owner)" "wait for it, stop it (kill ${owner[pid]-PID}), or name another RESULTS_DIR"
}

# For a dry run: would the lock be had? Looks for an instant, and leaves no trace.
look_at_lock() {
  local -A owner=()
  [[ -r $LOCK ]] || return 0
  exec 9<"$LOCK"
  if ! flock --shared --nonblock 9; then
    exec 9<&-
    read_owner
    owner_is_ending || refuse_lock
    say "WARN  $(describe_owner); it is ending, and a real run would wait for it"
  fi
  exec 9<&-
}

# A disk that is full, or a folder that was removed, must not keep a launch from ending.
mark_ending() {
  [[ ! -d ${launch_dir-} ]] || { : >"$launch_dir/ending"; } 2>/dev/null || :
  [[ -z ${locked-} ]] || { echo ending=1 >>"$LOCK"; } 2>/dev/null || :
}
