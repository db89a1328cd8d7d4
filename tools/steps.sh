# Sourced by the scripts beside it: where they run, how they show progress, which Rust will do.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly MIN_RUST=1.87
readonly MODEL=build/models/SmolLM2-135M-Instruct.Q4_1.gguf
mkdir -p build/logs build/models

# Step TITLE: opens a step of the script.
Step() { printf '\n==> %s  (%d s so far)\n' "$1" "$SECONDS"; }
Note() { printf '    %s\n' "$*"; }
Fail() {
  printf '\nerror: %s\n' "$*" >&2
  exit 1
}

# Quietly LOG COMMAND...: runs the command with its output in build/logs/LOG, showing its latest line while it works, and
# the end of the log when it fails.
Quietly() {
  local log=build/logs/$1 status=0 shown=$SECONDS pid
  shift
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.5
    if [ -t 1 ]; then
      printf '\r\033[K    %.100s' "$(tail -n 1 "$log" | tr -d '\r')"
    elif [ $((SECONDS - shown)) -ge 15 ]; then
      shown=$SECONDS
      Note "$(tail -n 1 "$log" | tr -d '\r' | cut -c1-100)"
    fi
  done
  [ ! -t 1 ] || printf '\r\033[K'
  wait "$pid" || status=$?
  if [ "$status" -ne 0 ]; then
    tail -n 30 "$log" >&2
    Fail "\`$*\` ended with status $status; all of its output is in $log"
  fi
}

# FindRust: prints the first cargo that is new enough, as the build looks for it; false when there is none.
FindRust() {
  local cargo version
  for cargo in cargo "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" $(ls -r /usr/bin/cargo-1.* 2>/dev/null); do
    version=$("$cargo" --version 2>/dev/null | cut -d' ' -f2) || continue
    if IsAtLeast "$version" "$MIN_RUST"; then
      echo "$cargo"
      return 0
    fi
  done
  return 1
}
# IsAtLeast VERSION MINIMUM
IsAtLeast() { [ -n "$1" ] && [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# Build PRESET [TARGET...]: configures and builds; all targets when none is named.
Build() {
  local preset=$1
  shift
  Quietly "configure-$preset.log" cmake --preset "$preset"
  NINJA_STATUS='    [%f/%t %es] ' cmake --build --preset "$preset" ${@:+--target "$@"}
}
