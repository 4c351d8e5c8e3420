# shellcheck shell=bash
# The parts of a launch: prepare, model server, driver; each is started, watched and ended here. The values of
# `rolloutgen resolve` are set.

repository=${repository:?set it before this is sourced}
# shellcheck source=scripts/lib/children.sh
source "$repository/scripts/lib/children.sh"

config=""     # as it was given
launch_dir="" # of this launch's record; named with the lock
scratch=""    # a temporary folder

# Sweep, preflight, run.json. Ends here when nothing is owed.
prepare() {
  attempt_told ours -m rolloutgen prepare "$config" --launch "$launch_dir" --launcher $$
  read_reason "preflight found what must be mended first"
  case $status in
    0) reason="" ;;
    10) exit 0 ;;
    2 | 3) exit "$status" ;;
    *) end_failed "prepare ended with status $status" ;;
  esac
}

serve_model() {
  [[ $USES_MODEL == 1 ]] || return 0
  model_key=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
  say "starting the model server; its log: $SERVER_LOG"
  ours -m rolloutgen serve "$config" --launch "$launch_dir" --launcher $$ \
    </dev/null >>"$log_file" 2>&1 &
  server=$!
  until grep -qs '"state": "ready"' "$launch_dir/server.json"; do
    ((interrupted == 0)) || exit "$interrupted"
    alive "$server" || end_with_server
    sleep 0.5 >/dev/null 2>&1 7>&- 9>&- &
    wait -n "$server" "$!" || :
  done
  say "the model server is ready"
}

drive() {
  ((interrupted == 0)) || exit "$interrupted"
  ours -m rolloutgen run "$config" --launch "$launch_dir" --launcher $$ </dev/null >&7 &
  driver=$!
  await_any "$driver" ${server:+"$server"}
  if [[ -n $server ]] && alive "$driver" && ! alive "$server"; then
    stop_driver
    ((interrupted == 0)) || exit "$interrupted"
    end_with_server
  fi
  await "$driver"
  driver=""
  ((interrupted == 0)) || exit "$interrupted"
  read_reason "see above"
  case $status in
    0 | 2 | 3 | 130 | 143) exit "$status" ;;
    1) end_failed "$reason" ;;
    *) end_failed "the driver ended with status $status" ;;
  esac
}

# What a child left for the last line, in one line; else what is given here.
read_reason() {
  reason=""
  [[ ! -s $launch_dir/reason ]] || reason=$(tr '\n\r' '  ' <"$launch_dir/reason")
  reason=${reason:-$1}
}

end_refused() {
  reason=$1
  exit 2
}

end_failed() {
  reason=$1
  exit 1
}

# The server died: its own words, and the lines of its log that show why.
end_with_server() {
  local told
  await "$server"
  server=""
  attend ours -c 'if True:
    import sys, pathlib
    from rolloutgen.serving.record import ServerRecord
    record = ServerRecord.read(pathlib.Path(sys.argv[1]))
    print(record.message if record and record.message else "it was killed", *(record.evidence if record else ()), sep="\n")
  ' "$launch_dir" >"$scratch/told" 2>/dev/null
  told=$(<"$scratch/told")
  say "the model server ended: $told"
  end_failed "the model server ended: ${told%%$'\n'*} (log: $SERVER_LOG)"
}

# Only left when the launcher ends out of turn; a signal that was caught has gone on to it already.
stop_driver() {
  if ((interrupted == 0)); then
    kill -s TERM "$driver" 2>/dev/null || :
    deadline=$((SECONDS + 14))
  fi
  await "$driver"
  driver=""
}

stop_server() {
  kill -s TERM "$server" 2>/dev/null || :
  deadline=$((SECONDS + 6))
  await_any "$server"
  kill -s TERM "$server" 2>/dev/null || :
  deadline=$((SECONDS + 3))
  await "$server"
  server=""
}

# Whatever is left of this launch, and its record.
end_launch() {
  deadline=$((SECONDS + 9))
  attend ours -c 'if True:
    import sys, pathlib
    from rolloutgen.launches import end, end_launch, read
    folder = pathlib.Path(sys.argv[1])
    launch = read(folder)
    lines = end_launch(launch, 0) if launch else end(folder)
    print("\n".join(line for line in lines or () if "record" not in line))
  ' "$launch_dir" >"$scratch/ended" 2>&1
  [[ -z $(<"$scratch/ended") ]] || say "$(<"$scratch/ended")"
}
