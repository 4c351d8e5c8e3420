# shellcheck shell=bash
# The parts of a launch: prepare, model server, gateway, driver; each is started, watched and ended here. The values of
# `rolloutgen resolve` are set.

repository=${repository:?set it before this is sourced}
# shellcheck source=scripts/lib/children.sh
source "$repository/scripts/lib/children.sh"

config=""       # as it was given
launch_dir=""   # of this launch's record; named with the lock
scratch=""      # a temporary folder
gateway_since=0 # in SECONDS: when it was started last
lost=""         # the part without which the driver cannot go on
told=()         # what a part said of itself

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
  ROLLOUTGEN_MODEL_KEY=$model_key ours -m rolloutgen serve "$config" --launch "$launch_dir" --launcher $$ \
    </dev/null >>"$log_file" 2>&1 &
  server=$!
  await_ready server
  say "the model server is ready"
}

# The gateway, once the server is ready; what it found out about the model is shown.
open_gateway() {
  local finding
  [[ $USES_MODEL == 1 ]] || return 0
  start_gateway
  await_ready gateway
  read_told gateway
  for finding in "${told[@]:1}"; do say "canary: $finding"; done
  say "the gateway is ready"
}

start_gateway() {
  ROLLOUTGEN_MODEL_KEY=$model_key ours -m rolloutgen gateway "$config" --launch "$launch_dir" --launcher $$ \
    </dev/null >>"$log_file" 2>&1 &
  gateway=$!
  gateway_since=$SECONDS
}

has_state() {
  grep -qs "\"state\": \"$2\"" "$launch_dir/$1.json"
}

# Wait until a part says that it is ready. The launch ends with any that dies meanwhile.
await_ready() {
  until has_state "$1" ready; do
    ((interrupted == 0)) || exit "$interrupted"
    alive "$server" || end_with_server
    [[ -z $gateway ]] || alive "$gateway" || end_with_gateway
    sleep 0.5 >/dev/null 2>&1 7>&- 9>&- &
    wait -n "$server" ${gateway:+"$gateway"} "$!" || :
  done
}

drive() {
  ((interrupted == 0)) || exit "$interrupted"
  ours -m rolloutgen run "$config" --launch "$launch_dir" --launcher $$ </dev/null >&7 &
  driver=$!
  watch_driver
  await "$driver"
  driver=""
  ((interrupted == 0)) || exit "$interrupted"
  read_reason "see above"
  case $status in
    0 | 3) exit "$status" ;;
  esac
  if [[ -n $server ]] && { has_state server failed || ! alive "$server"; }; then lost=server; fi
  [[ -z $lost ]] || "end_with_$lost"
  case $status in
    2 | 130 | 143) exit "$status" ;;
    1) end_failed "$reason" ;;
    *) end_failed "the driver ended with status $status" ;;
  esac
}

# Until the driver has ended, or ends because of a signal, or must end because a part of the launch is lost.
watch_driver() {
  while [[ -z $lost ]]; do
    await_any "$driver" ${server:+"$server"} ${gateway:+"$gateway"}
    if ! alive "$driver" || ((interrupted != 0)); then return 0; fi
    if [[ -n $server ]] && ! alive "$server"; then
      lose_server
    elif [[ -n $gateway ]] && ! alive "$gateway"; then
      replace_gateway
    fi
  done
}

# The driver learns of it through the gateway, and ends what runs in its own way.
lose_server() {
  lost=server
  deadline=$((SECONDS + 20))
  await_any "$driver"
  if ! alive "$driver"; then return 0; fi
  say "the model server is gone, and the driver is not: it is told to end"
  ask_driver
}

# One that had lived for a minute is worth another; one that had not would die again.
replace_gateway() {
  await "$gateway"
  if ((SECONDS - gateway_since >= 60)); then
    say "the gateway ended with status $status; it is started again"
    start_gateway
  else
    lost=gateway
    say "the gateway ended within a minute of its start: the driver is told to end"
    ask_driver
  fi
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

# The server died, or was restarted too often: its own words, and the lines of its log that show why.
end_with_server() {
  end_with "the model server" server "$SERVER_LOG"
}

end_with_gateway() {
  if has_state server failed; then end_with_server; fi
  end_with "the gateway" gateway "$LOG"
}

end_with() {
  read_told "$2"
  say "$1 ended: $(printf '%s\n' "${told[@]}")"
  end_failed "$1 ended: ${told[0]} (log: $3)"
}

# What a part says of itself in its record, as lines in the array `told`: why it ended, and what it found.
read_told() {
  deadline=$((SECONDS + 5))
  attend ours -c 'if True:
    import json, pathlib, sys
    record = json.loads(pathlib.Path(sys.argv[1]).read_text())
    found = (*record.get("evidence", ()), *record.get("findings", ()))
    print(" ".join(record["message"].split()) or "it was killed", *found, sep="\n")
  ' "$launch_dir/$1.json" >"$scratch/told" 2>/dev/null
  ((interrupted != 0)) || deadline=0
  mapfile -t told <"$scratch/told"
  ((${#told[@]})) || told=("it was killed")
}

# The driver ends its attempts when it is told to, within a limit.
ask_driver() {
  kill -s TERM "$driver" 2>/dev/null || :
  deadline=$((SECONDS + driver_sec))
}

# Only left when the launcher ends out of turn; a signal that was caught has gone on to it already.
stop_driver() {
  ((interrupted != 0)) || ask_driver
  await "$driver"
  driver=""
}

stop_gateway() {
  kill -s TERM "$gateway" 2>/dev/null || :
  deadline=$((SECONDS + gateway_sec))
  await "$gateway"
  gateway=""
}

stop_server() {
  kill -s TERM "$server" 2>/dev/null || :
  deadline=$((SECONDS + server_sec))
  await_any "$server"
  kill -s TERM "$server" 2>/dev/null || :
  deadline=$((SECONDS + hurried_server_sec))
  await "$server"
  server=""
}

# Whatever is left of this launch, and its record.
end_launch() {
  deadline=$((SECONDS + sweep_sec))
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
