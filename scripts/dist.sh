#!/bin/sh
# dist.sh   packs the module and the command redis-lock for TARGET (a target triple of rustc; by
#           default this machine) with the documentation into a tarball, and the command alone into
#           another one, each with its SHA-256 beside it. Builds them for another target than this
#           machine. The manual pages and completions come from this machine's build.
set -eu

cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
target=${TARGET:-$host}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
build=${CARGO_TARGET_DIR:-target}
name=redis-lock-$version-$target
command=redis-lock-cli-$version-$target
out=$build/dist

die() { echo "dist: $*" >&2; exit 1; }

build_for_glibc() {
  [ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || die "no standard library for $target: rustup target add $target"
  sh scripts/portable.sh build "$target" --release --lib
  sh scripts/portable.sh build "$target" --release --package redis-lock-cli
}

# Builds for musl: the module for the server's C library, the command without any.
build_for_musl() {
  exports=$(sh scripts/musl.sh)
  eval "$exports"
  [ "$MUSL_TARGET" = "$target" ] || die "here $MUSL_TARGET is the only target with musl"
  RUSTFLAGS=$MUSL_MODULE_FLAGS cargo build --release --lib --target "$target"
  cargo build --release --package redis-lock-cli --target "$target"
}

built=$build/$target/release
case $target in
  "$host") built=$build/release/packaged ;;
  *-musl) build_for_musl ;;
  *) build_for_glibc ;;
esac

rm -rf "${out:?}/$name" "$out/$command"
sh scripts/package-docs.sh "$out/$name"
mkdir -p "$out/$name/scripts" "$out/$name/packaging" "$out/$command"
cp "$built/libredis_lock.so" "$built/redis-lock" "$out/$name/"
cp -R "$build/release/packaged/share" "$out/$name/"
cp scripts/install.sh "$out/$name/scripts/"
cp packaging/redis-lock.conf "$out/$name/packaging/"
chmod 755 "$out/$name/libredis_lock.so" "$out/$name/redis-lock"
cp -R "$out/$name/redis-lock" "$out/$name/share" "$out/$name/LICENSE"* "$out/$command/"

# Packs a folder reproducibly: equal files give equal tarballs.
pack() (
  cd "$out"
  tar --sort=name --owner=0 --group=0 --numeric-owner --mtime='2000-01-01 00:00Z' -cf - "$1" | gzip -n >"$1.tar.gz"
  rm -rf "${1:?}"
  sha256sum "$1.tar.gz" >"$1.tar.gz.sha256"
  echo "$out/$1.tar.gz"
)
pack "$name"
pack "$command"
