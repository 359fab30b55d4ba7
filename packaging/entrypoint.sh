#!/bin/sh
# The image's entry point: gives the server the module's lines, protected mode and REDIS_PASSWORD, and
# leaves the rest to the base image's own entry point, which drops root.
#
#   options               come after these settings, so they go before them
#   a file, options       the file is the configuration, and protected mode comes before it as well,
#                         unless the file has a line about it
#   another command       runs as in the base image
set -eu

lines=/usr/share/redis-lock/redis-lock.conf
user=${PROGRAM%-server}

# Escapes a text for the quotes of a configuration file.
escaped() { printf %s "$1" | sed 's/[\\"]/\\&/g'; }

# Writes the configuration to a file that the server's user alone can read. Arguments would show the
# password to every process.
write_configuration() {
  rm -f "$1"
  (
    umask 077
    cat "$lines" >"$1"
    echo 'protected-mode yes' >>"$1"
    [ -z "${REDIS_PASSWORD:-}" ] || printf 'requirepass "%s"\n' "$(escaped "$REDIS_PASSWORD")" >>"$1"
  )
  [ "$(id -u)" != 0 ] || chown "$user" "$1"
}

case ${1:-} in '' | -* | *.conf) set -- "$PROGRAM" "$@" ;; esac
[ "$1" = "$PROGRAM" ] || exec docker-entrypoint.sh "$@"
shift
case ${1:-} in
  *.conf)
    [ -z "${REDIS_PASSWORD:-}" ] || {
      echo "REDIS_PASSWORD is not for a configuration file of your own: put requirepass into $1" >&2
      exit 1
    }
    file=$1
    shift
    grep -qi '^[[:space:]]*protected-mode[[:space:]]' "$file" || set -- --protected-mode yes "$@"
    ;;
  *)
    file=${TMPDIR:-/tmp}/redis-lock.conf
    write_configuration "$file"
    ;;
esac
unset REDIS_PASSWORD
exec docker-entrypoint.sh "$PROGRAM" "$file" "$@"
