# shellcheck shell=bash
# Which Python runs this program for a config: VENV_PATH's, else that of .venv, made where it is missing.

repository=${repository:?set it before this is sourced}

# Print the config's VENV_PATH (empty: none). It is the one thing that must be known before there is a Python to read the
# config; it is checked with all the rest then.
venv_path_of() {
  local kind text path=""
  while IFS= read -r -d '' kind && IFS= read -r -d '' _ && IFS= read -r -d '' text; do
    [[ $kind != value || $text != VENV_PATH=* ]] || path=${text#VENV_PATH=}
  done < <(bash "$repository/scripts/lib/config.sh" --lenient "$1" 2>/dev/null)
  path=${path%$'\r'}
  [[ -z $path || $path == /* ]] || path=$repository/$path
  printf '%s' "$path"
}

python_of() {
  printf '%s/bin/python' "${1:-$repository/.venv}"
}
