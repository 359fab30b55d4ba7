#!/bin/sh
# fuzz-bytes.sh SECONDS TARGET...   builds the targets of tests/bytes and runs each for some seconds.
#                                   KEEP=yes then keeps the fewest inputs that reach the same code
#
# 1. The compiler's own coverage is enough, so a stable toolchain does. `cargo fuzz` would need a
#    nightly one.
# 2. The kept inputs are in tests/bytes/corpus, one a line, in Base64. New ones stay in the directory
#    bytes of cargo's build directory, and a later run begins with them.
# 3. An input that a target fails with is written there too.
set -eu
cd "$(dirname "$0")/.."

seconds=$1
shift
host=$(rustc -vV | sed -n 's/^host: //p')
folder=${CARGO_TARGET_DIR:-target}/bytes
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

# choose TARGET: sets how a target is built and run. A walk's bytes choose among steps, so comparisons
# with numbers say nothing there, and to record them takes longer than to walk. 400 bytes are the longest
# walk.
choose() {
  case $1 in
    table) flags='' built=$folder/walks options='-max_len=400 -entropic=0 -reduce_inputs=0' ;;
    *) flags=-Cllvm-args=-sanitizer-coverage-trace-compares built=$folder/words options=-max_len=1024 ;;
  esac
  programs=$built/$host/release
  [ ! -f "tests/bytes/$1.dict" ] || options="$options -dict=tests/bytes/$1.dict"
}

build() {
  RUSTC_WRAPPER=$PWD/scripts/counted.sh COUNTED=$flags RUSTFLAGS='--cfg fuzzing' \
    cargo build --quiet --locked --release --target "$host" --target-dir "$built" --manifest-path tests/bytes/Cargo.toml \
    --bin "$1"
}

# unpack TARGET: writes the kept inputs as files.
unpack() {
  mkdir -p "$folder/inputs/$1"
  while read -r line; do
    printf '%s' "$line" | base64 -d >"$folder/inputs/$1/$(printf '%s' "$line" | cksum | tr ' ' -)"
  done <"tests/bytes/corpus/$1"
}

# keep TARGET: keeps the fewest inputs that reach all the code that was reached.
keep() {
  rm -rf "$folder/fewest"
  mkdir "$folder/fewest"
  "$programs/$1" -set_cover_merge=1 "$folder/fewest" "$folder/inputs/$1" >"$folder/$1.log" 2>&1
  for file in "$folder/fewest"/*; do base64 -w 0 "$file"; echo; done | LC_ALL=C sort >"tests/bytes/corpus/$1"
  rm -rf "$folder/fewest"
}

# play TARGET: runs a target from the kept inputs on. Prints the number of its cases.
play() {
  choose "$1"
  build "$1"
  unpack "$1"
  # shellcheck disable=SC2086 # a list of options
  if ! "$programs/$1" $options -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 \
    -artifact_prefix="$folder/$1-" "$folder/inputs/$1" >"$folder/$1.log" 2>&1; then
    tail -n 40 "$folder/$1.log" >&2
    echo "$1: FAILED; the input is $folder/$1-*" >&2
    return 1
  fi
  echo "$1: $(sed -n 's/^Done \([0-9]*\) runs.*/\1/p' "$folder/$1.log") cases, no failure"
  [ -z "${KEEP:-}" ] || keep "$1"
}

failed=0
for name in "$@"; do play "$name" || failed=1; done
exit "$failed"
