#!/usr/bin/env bash
# planted-module.sh [PATCH...]   plants each bug of tests/planted/module in the module of a copy of
#                                HEAD, plays the server tests against it until one fails, and prints
#                                which one did. A PATCH is one of these files; by default all
#
# 1. The module is built for debugging, in the directory planted-module of cargo's build directory.
#    The output of the tests stays there.
# 2. The tests are those of this tree, so they are built once.
# 3. TESTS names other binaries of tests than these nine, or fewer.
# 4. The first module has no patch. If a test fails with it, the others would show nothing.
# 5. Fails if a patch isn't caught, doesn't apply or doesn't compile.
set -euo pipefail
cd "$(dirname "$0")/.."

build=${CARGO_TARGET_DIR:-target}
mkdir -p "$build/planted-module"
folder=$(cd "$build/planted-module" && pwd)
copy=$folder/copy
# Tests of a server's speed and size have bounds of a module that is optimized.
binaries=${TESTS:-kinds replication sessions waiting security commands contexts server ha}

# module [PATCH]: builds the module of a copy of HEAD with a patch.
module() {
  rm -rf "$copy"
  mkdir "$copy"
  git archive HEAD | tar -xmf - -C "$copy"
  [ -z "${1:-}" ] || GIT_CEILING_DIRECTORIES=$folder git -C "$copy" apply "$1" || return
  CARGO_TARGET_DIR=$folder/target cargo build --quiet --manifest-path "$copy/Cargo.toml" --package redis-lock --lib
}

# tests: plays the tests until one fails.
tests() {
  # shellcheck disable=SC2046 # a list of words
  REDIS_LOCK_MODULE=$folder/target/debug/libredis_lock.so timeout --kill-after=10 1800 \
    cargo nextest run --fail-fast --test-threads 6 $(printf -- '--test %s ' $binaries)
}

# play NAME [PATCH]: prints the status and the seconds until it was known.
play() {
  local log=$folder/$1.log began status=passed
  began=$SECONDS
  if ! module "${2:-}" >"$log" 2>&1; then
    status="no module"
  else
    began=$SECONDS
    tests >>"$log" 2>&1 || status=failed
  fi
  printf '%s\t%d\n' "$status" $((SECONDS - began))
}

# caught_by NAME: prints the first test that failed.
caught_by() { sed -n 's/^ *\(FAIL\|TIMEOUT\|SIGABRT\|SIGSEGV\) \[[^]]*\] \(([^)]*) \)\?//p' "$folder/$1.log" | head -n 1; }

failed=0
row() { printf '%-36s %5s s  %s\n' "$1" "$2" "$3"; }

IFS=$'\t' read -r status seconds < <(play without)
row '(no patch)' "$seconds" "$status"
if [ "$status" != passed ]; then
  echo "the tests must pass without a patch: $folder/without.log" >&2
  exit 1
fi

[ "$#" != 0 ] || set -- tests/planted/module/*.patch
for patch in "$@"; do
  name=$(basename "$patch" .patch)
  IFS=$'\t' read -r status seconds < <(play "$name" "$PWD/tests/planted/module/$name.patch")
  caught=
  case $status in
    passed) status='NOT CAUGHT' ;;
    failed) caught=$(caught_by "$name") status=${caught:-"NO TEST FAILED: $folder/$name.log"} ;;
    *) status="$status: $folder/$name.log" ;;
  esac
  [ -n "$caught" ] || failed=1
  row "$name" "$seconds" "$status"
done
rm -rf "$copy"
exit "$failed"
