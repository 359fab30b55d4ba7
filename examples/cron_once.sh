#!/bin/sh
# cron_once.sh KEY WINDOW_MS COMMAND [ARGUMENT ...]
#
# Runs a command once in a fleet: every machine has the same line in its crontab, one of them runs it.
#
#   0 3 * * *  REDIS_CLI="redis-cli -h locks" cron_once.sh cron:backup 600000 /usr/local/bin/backup
#
# The first to ask is granted the lock and runs the command; the others are told nil and leave. The lock is
# kept until WINDOW_MS have passed, even when the command is done sooner, so that a machine whose clock is
# late doesn't run it a second time. WINDOW_MS is longer than the clocks are apart, and shorter than the
# time between two runs. A command that takes longer keeps the lock as long as it runs: its lease is
# extended at a third of the window. A machine that dies keeps it for one window at most.
#
# The command finds the fence in LOCK_FENCE. Exits with the command's own code; 0 where another machine
# runs it; 75 where the server can't be asked; 76 where the lock was lost: the command was told to end
# (SIGTERM) then.
set -u

cli=${REDIS_CLI:-redis-cli}
[ $# -ge 3 ] || { echo "usage: cron_once.sh KEY WINDOW_MS COMMAND [ARGUMENT ...]" >&2; exit 64; }
key=$1
window_ms=$2
shift 2
token=$(uname -n):$$:$(date +%s)

# -e: an error of the server is an error of redis-cli. Its words are several on purpose.
ask() { $cli -e "$@"; }

answer=$(ask LOCK.ACQUIRE "$key" "$token" PX "$window_ms") || {
  echo "cron_once.sh: $answer" >&2
  exit 75
}
[ -n "$answer" ] || exit 0
LOCK_FENCE=$(echo "$answer" | tail -n 1)
export LOCK_FENCE

"$@" &
job=$!

# Extends the lease while the command runs. 0 says that it is no longer ours; an answer that doesn't come
# says nothing, and the next may.
third=$(awk "BEGIN { print $window_ms / 3000 }")
(
  nap=
  trap 'kill $nap; exit 0' TERM
  while sleep "$third" & nap=$!; wait "$nap"; do
    # Without the script nobody waits for the command any more.
    if ! kill -0 $$ || [ "$(ask LOCK.EXTEND "$key" "$token" PX "$window_ms")" = 0 ]; then
      # The script asks this to end as soon as the command has: what it ends with is told first.
      trap '' TERM
      kill "$job"
      exit 76
    fi
  done
) </dev/null >/dev/null 2>&1 &
renewal=$!
# Not sooner: what begins with a trap of this shell can lose a signal before it sets its own.
trap 'kill "$job" 2>/dev/null' INT TERM

wait "$job"
code=$?
# A signal that was passed on ends a wait before the command has ended.
while kill -0 "$job" 2>/dev/null; do
  wait "$job"
  code=$?
done
kill "$renewal" 2>/dev/null
wait "$renewal" 2>/dev/null
[ $? -ne 76 ] || exit 76

held_ms=$(ask LOCK.INFO "$key" | sed -n '/^held-ms$/ { n; p; q; }')
left_ms=$((window_ms - ${held_ms:-0}))
if [ "$left_ms" -gt 0 ]; then
  ask LOCK.EXTEND "$key" "$token" PX "$left_ms" >/dev/null
else
  ask LOCK.RELEASE "$key" "$token" >/dev/null
fi
exit "$code"
