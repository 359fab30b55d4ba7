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
target=$(rustc -vV | sed -n 's/^host: //p')
folder=${CARGO_TARGET_DIR:-target}/bytes
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
programs=$folder/target/$target/release

RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares" \
  cargo build --quiet --locked --release --target "$target" --target-dir "$folder/target" \
  --manifest-path tests/bytes/Cargo.toml

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
  unpack "$1"
  dictionary=tests/bytes/$1.dict
  [ -f "$dictionary" ] || dictionary=
  if ! "$programs/$1" -max_total_time="$seconds" -max_len=1024 -rss_limit_mb=2048 -timeout=20 \
    ${dictionary:+-dict="$dictionary"} -artifact_prefix="$folder/$1-" "$folder/inputs/$1" >"$folder/$1.log" 2>&1; then
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
