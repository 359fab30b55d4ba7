#!/bin/sh
# arm64.sh   builds for arm64 on another machine, and runs the core's tests and the command by qemu-user.
#            Prints, in the form of shell exports, the module and a server that loads it.
#
# The server and its libraries are those of this Debian for arm64. apt keeps its state for them apart,
# so that the machine's own packages stay as they are.
set -eu

cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
build=${CARGO_TARGET_DIR:-$PWD/target}
root=$build/arm64/root
server=$build/arm64/redis-server

die() { echo "arm64: $*" >&2; exit 1; }

fetch_server() {
  apt=$build/arm64/apt
  mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$root"
  cat >"$apt/conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
Dir::State::lists "$apt/lists";
Dir::State::status "/dev/null";
Dir::Cache::archives "$apt/archives";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
END
  export APT_CONFIG="$apt/conf"
  apt-get --quiet=2 update
  apt-get --quiet=2 install --yes --download-only --no-install-recommends redis-server
  for package in "$apt"/archives/redis*.deb "$apt"/archives/lib*.deb; do dpkg-deb --extract "$package" "$root"; done
  printf '#!/bin/sh\nexec qemu-aarch64 -L "%s" "%s/usr/bin/redis-server" "$@"\n' "$root" "$root" >"$server"
  chmod 755 "$server"
}

command -v qemu-aarch64 >/dev/null || die "no qemu-aarch64 (Debian: qemu-user)"
[ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || die "no standard library for $target: rustup target add $target"
[ -x "$server" ] || fetch_server >&2

# What `make dist` packs.
sh scripts/portable.sh build "$target" --release --lib >&2
sh scripts/portable.sh build "$target" --release --package redis-lock-cli >&2
# The profile of the tools takes less long than that of releases.
CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L $root" \
  sh scripts/portable.sh test "$target" --profile tool --package redis-lock-core >&2
qemu-aarch64 -L "$root" "$build/$target/release/redis-lock" --version >&2
printf "export REDIS_SERVER='%s' REDIS_LOCK_MODULE='%s'\n" "$server" "$build/$target/release/libredis_lock.so"
