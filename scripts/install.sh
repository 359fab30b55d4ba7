#!/bin/sh
# install.sh install     copies the module and the lines for the server's configuration below
#                        PREFIX, and prints the steps that are left
# install.sh uninstall   removes both files
#
# MODULE is the path of the built module, by default libredis_lock.so beside this script's
# directory, like in a release tarball. PREFIX is the target directory, by default the server's
# prefix, or /usr/local if no server is found. DESTDIR is prepended to all paths, for makers of
# packages.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)

# Prints the prefix of the server: /usr for a server in /usr/bin, because its systemd unit may
# forbid to run anything from elsewhere.
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

# Puts the file in place in one step, so that a running server keeps the module that it has loaded.
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
