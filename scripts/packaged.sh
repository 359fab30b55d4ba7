#!/bin/sh
# profiled.sh   makes the module that `make deb` and `make dist` pack: release/packaged/libredis_lock.so
#               in the target directory. A first build runs locks under load and records which code
#               is hot; the compiler optimizes the second build by that profile. Without rustup's
#               llvm-tools, or if PROFILED is empty, the packages have the module of `make build`.
set -eu

cd "$(dirname "$0")/.."
build=${CARGO_TARGET_DIR:-$PWD/target}
out=$build/release/packaged
profiles=$build/profiles
mkdir -p "$out"

say() { echo "profiled: $*" >&2; }

# The module of `make build` is the same as last time, so the sources are too.
cmp -s "$build/release/libredis_lock.so" "$out/plain.so" && exit 0

pack_plain() {
  say "$*, so the packages have the module of make build"
  rm -f "$out/plain.so"
  cp "$build/release/libredis_lock.so" "$out/"
  exit 0
}

[ -n "${PROFILED-yes}" ] || pack_plain "PROFILED is empty"
host=$(rustc -vV 2>/dev/null | sed -n 's/^host: //p')
case $host in *-linux-gnu) ;; *) pack_plain "no profile can be made on this system" ;; esac
profdata=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
[ -x "$profdata" ] || rustup component add llvm-tools >&2 || true
[ -x "$profdata" ] || pack_plain "there is no llvm-profdata (rustup component add llvm-tools)"

# The target keeps build scripts and macros out of the profile.
build_with() {
  RUSTFLAGS="$1" cargo build --release --lib --target "$host" --target-dir "$build/profiled" >&2
  built=$build/profiled/$host/release/libredis_lock.so
}

say "building the module twice and running it under load, which takes some minutes"
build_with "-Cprofile-generate=$profiles"
rm -rf "$profiles"
LLVM_PROFILE_FILE="$profiles/%p.profraw" cargo run --quiet --profile tool -p redis-lock-bench --bin bench -- \
  --quick --only pair,contended --results "$profiles/bench" --module "$built" "$REDIS_SERVER" >"$profiles.log" 2>&1 ||
  { cat "$profiles.log" >&2; say "the load failed"; exit 1; }
"$profdata" merge --sparse -o "$profiles/merged.profdata" "$profiles"/*.profraw
build_with "-Cprofile-use=$profiles/merged.profdata"
cp "$built" "$out/"
cp "$build/release/libredis_lock.so" "$out/plain.so"
