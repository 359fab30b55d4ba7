#!/bin/sh
# matrix.sh SERVER...   runs `make test` and `make test-ha` against each of these server programs,
#                       all with one and the same module, and prints one line for each.
#
# What the runs print is kept in matrix, in the folder that cargo builds in. Fails when a run failed, or ran no test.
set -u

logs=${CARGO_TARGET_DIR:-target}/matrix
mkdir -p "$logs"

name_of() {
  "$1" --version 2>/dev/null | sed -n 's/^\([A-Za-z]*\) server v=\([0-9.]*\).*/\1 \2/p'
}

# The sum of the numbers before a word such as "passed", over all of cargo's "test result" lines.
count() {
  awk -v word="$1" '/^test result:/ { for (i = 2; i <= NF; i++) if ($i ~ "^" word) sum += $(i - 1) }
                    END { print sum + 0 }' "$2"
}

# The tests that failed, each with the first lines of what it said; the end of the log, where no
# test came as far as to fail.
complaints() {
  awk '/^---- .* stdout ----$/ { left = 12 }
       /^stack backtrace:/ { left = 0 }
       left > 0 && NF { print "    " substr($0, 1, 400); left--; said = 1 }
       { last = before; before = $0 }
       END { if (!said) print "    " last "\n    " before }' "$1"
}

# Runs a make target that runs tests; one that ran none has failed too.
ran() {
  REDIS_SERVER=$1 "${MAKE:-make}" --no-print-directory "$2" >"$3" 2>&1 &&
    [ "$(count passed "$3")" -gt 0 ]
}

failed=0 number=0
for server in "$@"; do
  number=$((number + 1))
  log=$logs/$number.log ha_log=$logs/$number-ha.log
  name=$(name_of "$server")
  began=$(date +%s)
  verdict=ok
  : >"$log" >"$ha_log"
  if [ -z "$name" ]; then
    name=$server verdict="no server to be run"
  else
    ran "$server" test "$log" || verdict=FAILED
    ran "$server" test-ha "$ha_log" || verdict=FAILED
  fi
  cat "$ha_log" >>"$log"
  printf '%-14s %-7s %5d passed %4d failed %5d s\n' "$name" "$verdict" \
    "$(count passed "$log")" "$(count failed "$log")" $(($(date +%s) - began))
  if [ "$verdict" != ok ]; then
    failed=1
    complaints "$log"
    echo "    all of it: $log"
  fi
done
if [ "$number" = 0 ]; then
  echo "no server named: make test-matrix SERVERS=\"/path/to/redis-server /path/to/valkey-server\"" >&2
  exit 2
fi
exit $failed
