#!/usr/bin/env bash
# Read a config as Bash reads it, in a clean shell of its own, and print what it sets.
#
# usage: bash scripts/lib/config.sh [--lenient] FILE [NAME...]
#
# stdout: records of three NUL-terminated fields, KIND PLACE TEXT:
#   command  PLACE    a command of FILE that was run, in order
#   failed   PLACE    a command that ended with a status other than 0
#   array    (empty)  KEY, set as an array
#   value    (empty)  KEY=VALUE, for each variable that FILE set, unless its name is all lower case
#   end      (empty)  FILE was read to its end
# PLACE is FILE:LINE. stderr: Bash's own messages. exit: that of Bash; 124 or 137: the time limit; nothing is decided here.
#
# FILE runs in the repository's root, with no stdin and an empty environment (PATH, HOME, USER, LOGNAME, TMPDIR stay),
# under `set -u` (not with --lenient), for ten seconds at most. Each NAME is defined as empty beforehand.
# What a config can see here is called __config_*: its own helper names must not meet ours. No `set -e`: the config's
# failures are reported, not obeyed.

__config_trace() {
  if [[ $2 != "$__config_self" && $4 != *__config_* && ($BASH_SUBSHELL == 0 || $1 == failed) ]]; then
    printf '%s\0%s:%s\0%s\0' "$@" >&3
  fi
}

__config_show_values() {
  local __config_name __config_kind
  trap - DEBUG ERR
  set +uET
  while read -r __config_name; do
    case $__config_name in
      BASH* | EPOCH* | COMP_* | COPROC | DIRSTACK | FUNCNAME | GROUPS | HISTCMD | LINENO | MAPFILE | OPT*) continue ;;
      OLDPWD | PIPESTATUS | PWD | RANDOM | REPLY | SECONDS | SHELLOPTS | SRANDOM) continue ;;
      *[A-Z]*) ;;
      *) continue ;;
    esac
    if [[ -n ${__config_before[$__config_name]+known} && ${!__config_name-} == "${__config_before[$__config_name]}" ]]; then
      continue
    fi
    __config_kind=$(declare -p "$__config_name" 2>/dev/null)
    if [[ ${__config_kind%% "$__config_name"*} == *-*[aA]* ]]; then
      printf 'array\0\0%s\0' "$__config_name" >&3
    elif [[ -n ${!__config_name+set} ]]; then
      printf 'value\0\0%s=%s\0' "$__config_name" "${!__config_name}" >&3
    fi
  done < <(compgen -v)
}

if [[ -z ${__config_clean-} ]]; then
  __config_keep=()
  for __config_name in PATH HOME USER LOGNAME TMPDIR; do
    [[ -z ${!__config_name+set} ]] || __config_keep+=("$__config_name=${!__config_name}")
  done
  exec timeout --kill-after=1 10 env -i "${__config_keep[@]}" LC_ALL=C __config_clean=1 \
    "$BASH" "${BASH_SOURCE[0]}" "$@" </dev/null
fi

__config_lenient=
if [[ ${1-} == --lenient ]]; then
  __config_lenient=1
  shift
fi
__config_self=${BASH_SOURCE[0]}
__config_file=${1:?usage: config.sh [--lenient] FILE [NAME...]}
shift
[[ $__config_file == /* ]] || __config_file=$PWD/$__config_file
exec 3>&1 1>&2
for __config_name; do printf -v "$__config_name" ''; done
set --
declare -A __config_before=()
while read -r __config_name; do __config_before[$__config_name]=${!__config_name-}; done < <(compgen -v)
unset __config_name
export -n __config_clean
[[ $__config_self == /* ]] || __config_self=$PWD/$__config_self
cd -- "${__config_self%/*}/../.." || exit
__config_self=${BASH_SOURCE[0]}

[[ -n $__config_lenient ]] || set -u
set -ET
trap __config_show_values EXIT
trap '__config_trace command "${BASH_SOURCE[0]-}" "$LINENO" "$BASH_COMMAND"' DEBUG
trap '__config_trace failed "${BASH_SOURCE[0]-}" "$LINENO" "status $?: $BASH_COMMAND"' ERR
# shellcheck disable=SC1090  # the config is the argument
source "$__config_file"
printf 'end\0\0\0' >&3
