#!/bin/sh
# recording.sh SERVER MODULE [SVG]
#
# Records the README's example in two terminals, and draws it as SVG, by default
# docs/pictures/hand-over.svg. Both terminals are panes of one tmux, which asciinema records. The
# replies are those of SERVER with MODULE; only the keys are pressed by this script. svg-term, which
# npm fetches, draws the picture.
set -eu

server=$1 module=$2 svg=${3:-docs/pictures/hand-over.svg}
cli=$(dirname "$server")/redis-cli
[ -x "$cli" ] || cli=$(dirname "$server")/valkey-cli
folder=$(mktemp -d)
port=6379 # the one that readers have
columns=64 rows=13

tmux() { command tmux -f /dev/null -S "$folder/tmux.sock" "$@"; }

end() {
  tmux kill-server 2>/dev/null || true
  "$cli" -p $port shutdown nosave 2>/dev/null || true
  rm -rf "$folder"
}
trap end EXIT

# Waits for a time as a person does who types and reads.
pause() { sleep "$1"; }

# Types a command in a pane, and presses Enter.
type_in() {
  pane=$1 text=$2
  while [ -n "$text" ]; do
    rest=${text#?}
    tmux send-keys -t "$pane" -l "${text%"$rest"}"
    text=$rest
    pause 0.03
  done
  pause 0.4
  tmux send-keys -t "$pane" Enter
}

# Waits until a pane shows a text, for 5 s at most.
wait_for() {
  tries=0
  until tmux capture-pane -p -t "$1" | grep -qF "$2"; do
    tries=$((tries + 1))
    [ $tries -lt 50 ] || { echo "recording: no $2 in terminal $1" >&2; exit 1; }
    pause 0.1
  done
}

if "$cli" -p $port ping >/dev/null 2>&1; then echo "recording: port $port is in use" >&2; trap - EXIT; exit 1; fi
"$server" --port $port --loadmodule "$(realpath "$module")" --save '' --dir "$folder" \
  --daemonize yes >/dev/null
until "$cli" -p $port ping >/dev/null 2>&1; do pause 0.1; done

# redis-cli's hints would be in the picture.
echo ':set nohints' >"$folder/redisclirc"
prompt="env REDISCLI_RCFILE=$folder/redisclirc REDISCLI_HISTFILE=/dev/null $cli"
tmux new-session -d -x $columns -y $rows "$prompt"
tmux set -g status off
tmux set -g pane-border-status top
tmux set -g pane-border-format ' terminal #{?pane_at_top,A,B} '
tmux set -g pane-border-style fg=white
tmux set -g pane-active-border-style fg=white
tmux split-window -v -l 5 "$prompt"
pause 0.5
asciinema rec --quiet --overwrite --cols $columns --rows $rows -c "tmux -f /dev/null -S $folder/tmux.sock attach" \
  "$folder/hand-over.cast" </dev/null >/dev/null 2>&1 &
recorder=$!
pause 1
type_in .0 'LOCK.ACQUIRE orders:42 alice PX 30000'
wait_for .0 '(integer)'
pause 1
tmux select-pane -t .1
type_in .1 'LOCK.WAIT orders:42 bob PX 30000 BLOCK 60000'
pause 2
tmux select-pane -t .0
type_in .0 'LOCK.RELEASE orders:42 alice'
wait_for .1 '"bob"'
pause 4
tmux kill-server
wait $recorder || true

mkdir -p "$(dirname "$svg")"
# The story ends at the long pause: what tmux prints at its end isn't part of it. svg-term shows a screen
# until the next event, so an empty event keeps the last screen, which has bob's grant, for 4 s.
awk -F '[][,]' '
  NR > 2 && $2 > end + 3 { exit }
  { print; end = $2 }
  END { printf "[%f, \"o\", \"\\u001b[0m\"]\n", end + 4 }
' "$folder/hand-over.cast" | npx --yes svg-term-cli@2.1.1 --out "$svg" --window --no-cursor

# A reader who asks for no motion sees the last screen.
still='g[style*=animation]{animation:none!important;transform:\1}'
sed -i -E "s/to\{transform:([^}]*)\}\}/&@media (prefers-reduced-motion:reduce){$still}/" "$svg"
