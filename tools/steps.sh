# Sourced by the scripts beside it: where they run, how they show progress, and which Rust they use.
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

# IsNewRust CARGO: whether this cargo runs and is at least MIN_RUST.
IsNewRust() {
  local version
  version=$("$1" --version 2>/dev/null | cut -d' ' -f2) && [ -n "$version" ] &&
    [ "$(printf '%s\n%s\n' "$MIN_RUST" "$version" | sort -V | head -n 1)" = "$MIN_RUST" ]
}

# UseRust: makes `cargo` and `rustc` mean a new enough Rust for what follows; false when none is installed. The one on the
# PATH comes first, then rustup's, then a distribution's versioned package (cargo-1.89 needs rustc-1.89 beside it).
UseRust() {
  local cargo rustc
  for cargo in cargo "$HOME/.cargo/bin/cargo" $(ls -r /usr/lib/rust-1.*/bin/cargo /usr/bin/cargo-1.* 2>/dev/null); do
    IsNewRust "$cargo" || continue
    case $cargo in
      cargo) return 0 ;;
      /usr/bin/cargo-*) rustc=${cargo/cargo-/rustc-} ;;
      *) rustc=${cargo%cargo}rustc ;;
    esac
    mkdir -p build/rust
    ln -sf "$cargo" build/rust/cargo
    ln -sf "$rustc" build/rust/rustc
    export PATH=$PWD/build/rust:$PATH
    return 0
  done
  return 1
}

# Build PRESET [TARGET...]: configures and builds; all targets when none is named.
Build() {
  local preset=$1
  shift
  Quietly "configure-$preset.log" cmake --preset "$preset"
  NINJA_STATUS='    [%f/%t %es] ' cmake --build --preset "$preset" ${@:+--target "$@"}
}
