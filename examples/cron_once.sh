#!/bin/sh
# cron_once.sh KEY WINDOW_MS COMMAND [ARGUMENT ...]
#
# Runs a command once in a fleet: every machine has the same line in its crontab, and one machine
# runs it.
#
#   0 3 * * *  REDIS_CLI="redis-cli -h locks" cron_once.sh cron:backup 600000 /usr/local/bin/backup
#
# The first machine to ask is granted the lock and runs the command. The other machines get nil and
# exit. The lock is kept until WINDOW_MS have passed, even if the command ends sooner, so that a
# machine with a late clock doesn't run it a second time. WINDOW_MS must be longer than the
# difference of the clocks, and shorter than the time between two runs. A command that takes longer
# keeps the lock while it runs: its lease is extended at each third of the window. A machine that
# dies keeps the lock for one window at most.
#
# The command finds the fence in LOCK_FENCE. Exits with the command's own code, 0 if another machine
# runs it, 75 if the server can't be asked, or 76 if the lock was lost. After a loss the command
# gets SIGTERM.
set -u

cli=${REDIS_CLI:-redis-cli}
[ $# -ge 3 ] || { echo "usage: cron_once.sh KEY WINDOW_MS COMMAND [ARGUMENT ...]" >&2; exit 64; }
key=$1
window_ms=$2
shift 2
token=$(uname -n):$$:$(date +%s)

# -e makes redis-cli fail on an error of the server. $cli is unquoted, because it may be several
# words.
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

# Extends the lease while the command runs. The reply 0 means that the lock was lost. Without a
# reply the loop continues, because the next EXTEND may get one.
third=$(awk "BEGIN { print $window_ms / 3000 }")
(
  nap=
  trap 'kill $nap; exit 0' TERM
  while sleep "$third" & nap=$!; wait "$nap"; do
    # Without the script, no process waits for the command.
    if ! kill -0 $$ || [ "$(ask LOCK.EXTEND "$key" "$token" PX "$window_ms")" = 0 ]; then
      # The script sends SIGTERM to this subshell once the command ends. It is ignored, so that the
      # exit code is 76.
      trap '' TERM
      kill "$job"
      exit 76
    fi
  done
) </dev/null >/dev/null 2>&1 &
renewal=$!
# Not sooner, because a subshell that inherits this trap can lose a signal before it sets its own.
trap 'kill "$job" 2>/dev/null' INT TERM

wait "$job"
code=$?
# A forwarded signal ends a wait before the command has ended.
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
