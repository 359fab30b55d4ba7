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
copy=$folder/copy
# An eighth of the random cases. The first one that fails is enough.
export CARGO_TARGET_DIR=$folder/target PROPTEST_CASES=32 PROPTEST_MAX_SHRINK_ITERS=0
unset SMALL_WORLD_SECONDS
# The bound of one run in seconds. Some bugs make a test endless.
limit=600

# fresh_copy: makes a copy of HEAD. Its files are new, so cargo builds them.
fresh_copy() {
  rm -rf "$copy"
  mkdir "$copy"
  git archive HEAD | tar -xmf - -C "$copy"
}

# play NAME [PATCH]: runs the tests in a copy with a patch. Prints their status and seconds.
play() {
  local log=$folder/$1.log began=$SECONDS status=passed
  fresh_copy
  if [ -n "${2:-}" ] && ! GIT_CEILING_DIRECTORIES=$folder git -C "$copy" apply "$2" 2>"$log"; then
    status="doesn't apply"
  elif ! tests --quiet --no-run >"$log" 2>&1; then
    status="doesn't compile"
  else
    began=$SECONDS
    tests --no-fail-fast >>"$log" 2>&1 || status=failed
  fi
  printf '%s\t%d\n' "$status" $((SECONDS - began))
}

# tests OPTION...: runs cargo test in the copy.
tests() (
  cd "$copy"
  exec timeout --kill-after=10 "$limit" cargo test --package redis-lock-core --lib --tests "$@"
)

# caught_by NAME: prints the tests that failed: the first two and the number of them.
caught_by() {
  sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$folder/$1.log" | sort -u |
    awk 'NR <= 2 { shown = shown (NR > 1 ? ", " : "") $0 } END { if (NR) print NR ": " shown }'
}

failed=0
row() { printf '%-42s %5s s  %s\n' "$1" "$2" "$3"; }

IFS=$'\t' read -r status seconds < <(play without)
row '(no patch)' "$seconds" "$status"
if [ "$status" != passed ]; then
  echo "the tests must pass without a patch: $folder/without.log" >&2
  exit 1
fi

[ "$#" != 0 ] || set -- tests/planted/*.patch
for patch in "$@"; do
  name=$(basename "$patch" .patch)
  IFS=$'\t' read -r status seconds < <(play "$name" "$PWD/tests/planted/$name.patch")
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
