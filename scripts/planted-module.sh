#!/usr/bin/env bash
# planted-module.sh [PATCH...]   plants each bug of tests/planted/module in the module of a copy of
#                                HEAD, plays server tests against it until one fails, and prints which
#                                one did. A PATCH is one of these files; by default all
#
# 1. The second line of a patch has the tests that catch it: `tests: waiting/keep` those of a file,
#    `tests: waiting/keep::a_grant` those whose names begin so. If it has none, all are played.
# 2. The module is built for debugging, in the directory planted-module of cargo's build directory.
#    The output of the tests stays there.
# 3. The tests are those of this tree, so they are built once.
# 4. TESTS names other binaries of tests than these nine, or fewer.
# 5. The first module has no patch, and all tests of the patches are played with it. If one fails, the
#    others would show nothing.
# 6. Fails if a patch isn't caught, doesn't apply or doesn't compile.
set -euo pipefail
cd "$(dirname "$0")/.."

build=${CARGO_TARGET_DIR:-target}
mkdir -p "$build/planted-module"
folder=$(cd "$build/planted-module" && pwd)
# Tests of a server's speed and size have bounds of a module that is optimized.
binaries=${TESTS:-kinds replication sessions waiting security commands contexts server ha}

# built: builds the module of the copy.
built() {
  CARGO_TARGET_DIR=$folder/target cargo build --quiet --manifest-path "$copy/Cargo.toml" --package redis-lock --lib
}

# tests: plays the tests of the planted patches until one fails.
tests() {
  # shellcheck disable=SC2046 # a list of words
  REDIS_LOCK_MODULE=$folder/target/debug/libredis_lock.so timeout --kill-after=10 1800 \
    cargo nextest run --fail-fast --test-threads 6 $(printf -- '--test %s ' $binaries) -E "$(filter)"
}

# filter: prints the tests of the planted patches as a filter of cargo-nextest.
filter() {
  local name tests or=
  for name in $planted; do
    tests=$(tests_of "tests/planted/module/$name.patch")
    case $tests in
      */*::*) printf '%sbinary(=%s) & test(/^%s/)' "$or" "${tests%%/*}" "${tests#*/}" ;;
      */*) printf '%sbinary(=%s) & test(/^%s::/)' "$or" "${tests%%/*}" "${tests#*/}" ;;
      *) printf '%sall()' "$or" ;;
    esac
    or=' | '
  done
}

# caught_by NAME: prints the first test that failed.
caught_by() { sed -n 's/^ *\(FAIL\|TIMEOUT\|SIGABRT\|SIGSEGV\) \[[^]]*\] \(([^)]*) \)\?//p' "$folder/$1.log" | head -n 1; }

. scripts/planted-rows.sh
play_all tests/planted/module "$@"
