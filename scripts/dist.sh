#!/bin/sh
# dist.sh   builds the module for TARGET (a target triple of rustc; by default this machine) and
#           packs it with the documentation into a tarball, with its SHA-256 beside it
set -eu

cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
target=${TARGET:-$host}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
build=${CARGO_TARGET_DIR:-target}
name=redis-lock-$version-$target
out=$build/dist

die() { echo "dist: $*" >&2; exit 1; }

# Uses the GCC of another architecture, by Debian's name, for linking and for bindgen's headers.
use_cross_compiler() {
  triple=$(echo "$1" | sed 's/-unknown//')
  command -v "$triple-gcc" >/dev/null || die "no $triple-gcc (Debian: gcc-${triple})"
  [ -d "$(rustc --print sysroot)/lib/rustlib/$1" ] || die "no standard library for $1: rustup target add $1"
  variable=$(echo "$1" | tr 'a-z-' 'A-Z_')
  export "CARGO_TARGET_${variable}_LINKER=$triple-gcc"
  export "BINDGEN_EXTRA_CLANG_ARGS=--target=$triple -I/usr/$triple/include ${BINDGEN_EXTRA_CLANG_ARGS:-}"
}

if [ "$target" = "$host" ]; then
  cargo build --release --lib
  module=$build/release/libredis_lock.so
else
  use_cross_compiler "$target"
  cargo build --release --lib --target "$target"
  module=$build/$target/release/libredis_lock.so
fi

rm -rf "${out:?}/$name"
mkdir -p "$out/$name/scripts" "$out/$name/packaging"
cp "$module" LICENSE LICENSE-APACHE LICENSE-MIT README.md CHANGELOG.md "$out/$name/"
cp -R docs monitoring "$out/$name/"
cp scripts/install.sh "$out/$name/scripts/"
cp packaging/redis-lock.conf "$out/$name/packaging/"
chmod 755 "$out/$name/libredis_lock.so"

# The tarball is reproducible: equal files give equal tarballs.
(
  cd "$out"
  tar --sort=name --owner=0 --group=0 --numeric-owner --mtime='2000-01-01 00:00Z' -cf - "$name" | gzip -n >"$name.tar.gz"
  rm -rf "${name:?}"
  sha256sum "$name.tar.gz" >"$name.tar.gz.sha256"
)
echo "$out/$name.tar.gz"
