#!/bin/sh
# install.sh install     copies the module and the lines for the server's configuration to where a server
#                        looks for them, and says what is left to do
# install.sh uninstall   removes them
#
# MODULE is the module that was built, by default the one beside this script's folder, as in a release
# tarball. PREFIX is where to, by default where the server lies, or /usr/local
# where none is found; DESTDIR is put before all paths, for who makes a package.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)

# Of the server in /usr/bin it is /usr: its systemd unit may allow nothing to be run from elsewhere.
prefix_of_server() {
  server=${REDIS_SERVER:-$(command -v redis-server || command -v valkey-server || true)}
  case $server in
    */bin/*) echo "${server%/bin/*}" ;;
    *) echo /usr/local ;;
  esac
}

prefix=${PREFIX:-$(prefix_of_server)}
module=$prefix/lib/redis/modules/libredis_lock.so
lines=$prefix/share/redis-lock/redis-lock.conf

# The module is put in place in one step: a server that runs keeps the one that it has loaded.
put() {
  mkdir -p "$(dirname "$DESTDIR$2")"
  install -m "$3" "$1" "$DESTDIR$2.new"
  mv "$DESTDIR$2.new" "$DESTDIR$2"
}

DESTDIR=${DESTDIR:-}
MODULE=${MODULE:-$root/libredis_lock.so}
case ${1:-} in
  install)
    put "$MODULE" "$module" 755
    made=$(mktemp)
    trap 'rm -f "$made"' EXIT
    awk -v path="$module" '$1 == "loadmodule" { $2 = path } { print }' "$root/packaging/redis-lock.conf" >"$made"
    put "$made" "$lines" 644
    echo "installed $DESTDIR$module"
    echo "to load it, append $DESTDIR$lines to the server's configuration, and start the server again"
    ;;
  uninstall)
    rm -f "$DESTDIR$module" "$DESTDIR$lines"
    rmdir "$DESTDIR$(dirname "$lines")" 2>/dev/null || true
    echo "removed $DESTDIR$module; take its lines out of the server's configuration as well"
    ;;
  *)
    echo "usage: install.sh install | uninstall" >&2
    exit 2
    ;;
esac
