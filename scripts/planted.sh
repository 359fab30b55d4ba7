#!/usr/bin/env bash
# planted.sh [PATCH...]   plants each bug of tests/planted in a copy of HEAD, runs the core's own
#                         tests there, and prints which of them catch it. A PATCH is one of these
#                         files; by default all
#
# 1. Each patch gets a fresh copy, in the directory planted of cargo's build directory. The output
#    of its tests stays there.
# 2. The copies share a build directory of their own, because cargo takes the crates of a copy for
#    those of the clone.
# 3. The first copy has no patch. If its tests fail, the others would show nothing.
# 4. Fails if a patch isn't caught, doesn't apply or doesn't compile.
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

tests() { cargo_test --no-fail-fast; }

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
