#!/usr/bin/env bash
# planted.sh [PATCH...]   plants each bug of tests/planted in a copy of HEAD, runs the core's own
#                         tests there, and prints which of them catch it. A PATCH is one of these
#                         files; by default all
#
# 1. The second line of a patch may have the tests that catch it: `tests: rules::leaves` those whose
#    names have these letters. If it has none, all are played.
# 2. The copy is in the directory planted of cargo's build directory. The output of its tests stays
#    there.
# 3. The copy has a build directory of its own, because cargo takes the crates of a copy for those
#    of the clone.
# 4. The copy has no patch first. If its tests fail, the others would show nothing.
# 5. Fails if a patch isn't caught, doesn't apply or doesn't compile.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${CARGO_TARGET_DIR:-target}/planted
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
# An eighth of the random cases. The first one that fails is enough.
export CARGO_TARGET_DIR=$folder/target PROPTEST_CASES=32 PROPTEST_MAX_SHRINK_ITERS=0
unset SMALL_WORLD_SECONDS
# The bound of one run in seconds. Some bugs make a test endless.
limit=600

built() { cargo_test --quiet --no-run; }

# tests: plays the tests of the planted patches.
tests() {
  local name tests all=
  for name in $planted; do
    tests=$(tests_of "tests/planted/$name.patch")
    if [ -z "$tests" ]; then
      cargo_test --no-fail-fast
      return
    fi
    all="$all $tests"
  done
  # shellcheck disable=SC2086 # a list of words
  cargo_test --no-fail-fast -- $all
}

# cargo_test OPTION...: runs cargo test in the copy.
cargo_test() (
  cd "$copy"
  exec timeout --kill-after=10 "$limit" cargo test --package redis-lock-core --lib --tests "$@"
)

# caught_by NAME: prints the tests that failed: the first two and the number of them.
caught_by() {
  sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$folder/$1.log" | sort -u |
    awk 'NR <= 2 { shown = shown (NR > 1 ? ", " : "") $0 } END { if (NR) print NR ": " shown }'
}

. scripts/planted-rows.sh
play_all tests/planted "$@"
