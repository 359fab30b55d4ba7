#!/bin/sh
# musl.sh   prints, in the form of shell exports, what cargo needs to build the module for musl on a
#           machine with glibc. The target is this machine's, with musl instead of gnu.
#
# The module is linked with the C library of the server that loads it, so it may not be static. Rust's
# own unwinder stands in for libgcc_s, because small images of servers don't have that library. A
# static program needs none of these flags: linked by musl-gcc, it would crash at its start.
set -eu

cd "$(dirname "$0")/.."
target=$(rustc -vV | sed -n 's/^host: \(.*\)-gnu$/\1-musl/p')
folder=${CARGO_TARGET_DIR:-$PWD/target}/musl-unwinder
unwinder=$(rustc --print sysroot)/lib/rustlib/$target/lib/self-contained/libunwind.a
headers=$(echo "$target" | sed 's/-unknown//')

die() { echo "musl: $*" >&2; exit 1; }

command -v musl-gcc >/dev/null || die "no musl-gcc (Debian: musl-tools)"
[ -f "$unwinder" ] || die "no standard library for $target: rustup target add $target"
mkdir -p "$folder"
ln -sf "$unwinder" "$folder/libgcc_s.a"

printf "export MUSL_TARGET='%s'\n" "$target"
printf "export MUSL_MODULE_FLAGS='-C linker=musl-gcc -C target-feature=-crt-static -L native=%s'\n" "$folder"
printf "export BINDGEN_EXTRA_CLANG_ARGS='-nostdinc -isystem /usr/include/%s -isystem %s'\n" "$headers" "$(cc -print-file-name=include)"
