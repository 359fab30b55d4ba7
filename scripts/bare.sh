#!/bin/sh
# bare.sh [COMMAND ...]   runs README's commands, as README says, in a minimal Debian 12 that has
#                         only Rust and make besides. With a command it runs that one there, in the
#                         clone. The clone has the committed state. DEBIAN=trixie takes Debian 13.
#                         Needs root and the network; debootstrap is installed if missing.
#
# The machine shares its toolchain (read-only), its apt mirror, its certificates and its settings of
# cargo, pip and proxies. Everything else stays in namespaces and a folder that is removed.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
release=${DEBIAN:-bookworm}

die() { echo "bare: $*" >&2; exit 1; }

# Makes the system in $1, and runs the rest there. Runs in namespaces of its own.
enter() {
  mount --make-rprivate /
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $release" | head -n 1)
  debootstrap --variant=minbase --include=ca-certificates,make "$release" "$1" "${mirror:-http://deb.debian.org/debian}" >"$1.log" 2>&1 ||
    { tail -n 20 "$1.log" >&2; die "no Debian"; }
  mount -t proc proc "$1/proc"
  mount --rbind /dev "$1/dev"
  mkdir -p "$1/opt/rust" "$1/root/.cargo"
  mount --bind "$(rustc --print sysroot)" "$1/opt/rust"
  mount -o remount,ro,bind "$1/opt/rust"
  cp /etc/resolv.conf "$1/etc/"
  echo '127.0.0.1 localhost' >"$1/etc/hosts" # debootstrap leaves it to the installer
  # Java reads the single files, the others the bundle.
  cp -R /usr/local/share/ca-certificates "$1/usr/local/share/"
  chroot "$1" update-ca-certificates >/dev/null 2>&1
  cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/"
  cp "${CARGO_HOME:-$HOME/.cargo}"/config.toml "$1/root/.cargo/" 2>/dev/null || true
  git clone --quiet --no-hardlinks "$here" "$1/redis-lock"
  cp "$0" "$1/bare.sh"
  root=$1
  shift
  for name in $(env | sed -n 's/^\([A-Za-z0-9_]*\)=.*/\1/p'); do
    case $name in
      CARGO_HTTP_* | CARGO_NET_* | CARGO_REGISTRIES_* | CARGO_SOURCE_* | NODE_EXTRA_* | PIP_* | SSL_CERT_* | *_proxy | *_PROXY) ;;
      *) unset "$name" ;;
    esac
  done
  HOME=/root PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
  export HOME PATH LANG
  exec chroot "$root" sh /bare.sh follow "$@"
}

# Follows README.
follow() {
  cd /redis-lock
  [ $# = 0 ] || exec "$@"
  before=$(ls -A)
  make run &
  run=$!
  until redis-cli ping >/dev/null 2>&1; do
    kill -0 "$run" 2>/dev/null || die "make run ended before a server replied"
    sleep 1
  done
  [ "$(redis-cli LOCK.ACQUIRE orders:42 alice PX 600000 | head -n 1)" = alice ] || die "A wasn't granted the lock"
  redis-cli LOCK.WAIT orders:42 bob PX 30000 BLOCK 60000 >/waited &
  waiter=$!
  until redis-cli LOCK.INFO orders:42 WAITERS 1 | grep -q bob; do sleep 1; done
  [ "$(redis-cli LOCK.RELEASE orders:42 alice)" = 1 ] || die "A didn't release the lock"
  wait "$waiter"
  [ "$(head -n 1 /waited)" = bob ] || die "B wasn't granted the lock"
  make run 2>&1 | grep 'port 6379 is taken' || die "a second make run took the same port"
  redis-cli shutdown
  wait "$run" || true
  [ "$(ls -A)" = "$(printf '%s\n' "$before" target | sort)" ] || die "make run left files in the clone"

  make test >/tested 2>&1 && status=0 || status=$?
  cat /tested
  [ "$status" = 0 ] || die "make test failed"
  grep -qE '^ *Summary .*[1-9][0-9]* tests run: [1-9]' /tested || die "make test ran no test"
}

case ${1:-} in
  enter | follow) "$@" ;;
  *)
    [ "$(id -u)" = 0 ] || die "debootstrap and namespaces need root"
    command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -qq --yes debootstrap debian-archive-keyring; }
    folder=$(mktemp -d)
    trap 'rm -rf --one-file-system "$folder"' EXIT
    unshare --mount --pid --fork --kill-child --ipc --uts sh "$0" enter "$folder/root" "$@"
    ;;
esac
