#!/bin/sh
# matrix.sh SERVER...   runs `make test` and `make test-ha` against each of these server programs,
#                       all with the same module, and prints for each the number of tests run.
#                       Tests that meet no server are left out
#
# Keeps the output of the runs in the directory matrix, inside cargo's build directory. Fails if a
# run failed or ran no test.
set -u

logs=${CARGO_TARGET_DIR:-target}/matrix
mkdir -p "$logs"

name_of() {
  "$1" --version 2>/dev/null | sed -n 's/^\([A-Za-z]*\) server v=\([0-9.]*\).*/\1 \2/p'
}

# Packages whose tests meet no server.
apart='redis-lock-core redis-lock-pages redis-lock-bench redis-lock-fuzz redis-lock-load'

# Runs the targets that run tests. Each counts its own tests; nextest fails if there were none.
ran() {
  status=0
  for target in test test-ha; do
    REDIS_SERVER=$1 NEXTEST_PROFILE=matrix "${MAKE:-make}" --no-print-directory "$target" EXCLUDE="$apart" 2>&1 || status=1
  done
  return $status
}

failed=0 number=0
for server in "$@"; do
  number=$((number + 1))
  log=$logs/$number.log
  name=$(name_of "$server")
  if [ -z "$name" ]; then
    printf '%-14s %s\n' "$server" "no server to be run"
    failed=1
  elif ran "$server" >"$log"; then
    printf '%-14s %s\n' "$name" ok
    grep '^ *Summary ' "$log"
  else
    printf '%-14s %s\n' "$name" FAILED
    cat "$log"
    failed=1
  fi
done
if [ "$number" = 0 ]; then
  echo "no server named: make test-matrix SERVERS=\"/path/to/redis-server /path/to/valkey-server\"" >&2
  exit 2
fi
exit $failed
