#!/bin/sh
# install.sh install     copies the module, the lines for the server's configuration, and the command
#                        redis-lock with its manual pages and completions below PREFIX, and prints
#                        the steps that are left. Builds nothing.
# install.sh uninstall   removes these files
#
# BUILT is the folder that has libredis_lock.so, redis-lock and share, by default the folder above
# this script's, like in a release tarball. A missing command is no error. PREFIX is the target
# directory, by default the server's prefix, or /usr/local if no server is found. DESTDIR is
# prepended to all paths, for makers of packages.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)

die() { echo "install: $*" >&2; exit 1; }

# Prints the prefix of the server: /usr for a server in /usr/bin, because its systemd unit may
# forbid to run anything from elsewhere.
prefix_of_server() {
  server=${REDIS_SERVER:-$(command -v redis-server || command -v valkey-server || true)}
  case $server in
    */bin/*) echo "${server%/bin/*}" ;;
    *) echo /usr/local ;;
  esac
}

BUILT=${BUILT:-$root}
DESTDIR=${DESTDIR:-}
prefix=${PREFIX:-$(prefix_of_server)}
module=$prefix/lib/redis/modules/libredis_lock.so
lines=$prefix/share/redis-lock/redis-lock.conf
command=$prefix/bin/redis-lock

# Puts the file in place in one step, so that a running server keeps the module that it has loaded.
put() {
  mkdir -p "$(dirname "$DESTDIR$2")"
  install -m "$3" "$1" "$DESTDIR$2.new"
  mv "$DESTDIR$2.new" "$DESTDIR$2"
}

put_module() {
  put "$BUILT/libredis_lock.so" "$module" 755
  made=$(mktemp)
  trap 'rm -f "$made"' EXIT
  awk -v path="$module" '$1 == "loadmodule" { $2 = path } { print }' "$root/packaging/redis-lock.conf" >"$made"
  put "$made" "$lines" 644
  echo "installed $DESTDIR$module"
}

put_command() {
  put "$BUILT/redis-lock" "$command" 755
  (cd "$BUILT" && find share -type f) | while read -r file; do put "$BUILT/$file" "$prefix/$file" 644; done
  echo "installed $DESTDIR$command with its manual pages and completions"
}

# The names are those of scripts/command-files.sh.
remove() {
  share=$DESTDIR$prefix/share
  rm -f "$DESTDIR$module" "$DESTDIR$lines" "$DESTDIR$command" "$share/man/man1/redis-lock.1.gz" \
    "$share"/man/man1/redis-lock-*.1.gz "$share/bash-completion/completions/redis-lock" \
    "$share/zsh/site-functions/_redis-lock" "$share/fish/vendor_completions.d/redis-lock.fish"
  rmdir "$DESTDIR$(dirname "$lines")" 2>/dev/null || true
}

case ${1:-} in
  install)
    [ -f "$BUILT/libredis_lock.so" ] || die "no $BUILT/libredis_lock.so. Build it as yourself, without sudo: make build"
    put_module
    if [ -f "$BUILT/redis-lock" ]; then
      put_command
    else
      echo "the command redis-lock isn't built, so it wasn't installed. Build it as yourself, without sudo: make cli"
    fi
    echo "to load the module, append $DESTDIR$lines to the server's configuration, and start the server again"
    ;;
  uninstall)
    remove
    echo "removed $DESTDIR$module and the command; take the module's lines out of the server's configuration as well"
    ;;
  *)
    echo "usage: install.sh install | uninstall" >&2
    exit 2
    ;;
esac
