#!/bin/sh
# packaged.sh   makes what `make deb` and `make dist` pack, in release/packaged of the target directory: the
#               module, and the command redis-lock with its manual pages and completions. Both run
#               with an older glibc than this machine's (scripts/portable.sh).
#
# A first build of the module runs locks under load and records which code is hot; the compiler
# optimizes the second build by that profile. That needs rustup's llvm-tools. PROFILE names the profile of
# another build, which is then used instead. If PROFILED is empty, or on a system without glibc, the
# packages have what `make build cli` builds.
set -eu

cd "$(dirname "$0")/.."
build=${CARGO_TARGET_DIR:-$PWD/target}
out=$build/release/packaged
profiles=$build/profiles
host=$(rustc -vV 2>/dev/null | sed -n 's/^host: //p')

say() { echo "packaged: $*" >&2; }

pack_plain() {
  say "$*, so the packages have what make build cli builds"
  rm -f "$out/plain.so"
  cargo build --release --package redis-lock-cli
  cp "$build/release/libredis_lock.so" "$build/release/redis-lock" "$out/"
}

# The target keeps build scripts and macros out of the profile.
build_here() { cargo build --release --target "$host" --target-dir "$build/portable" "$@" >&2; }

build_portable() { sh scripts/portable.sh build "$host" --release --target-dir "$build/portable" "$@" >&2; }

# Prints the path of llvm-profdata. Fails if it can't be had.
find_profdata() {
  profdata=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
  [ -x "$profdata" ] || rustup component add llvm-tools >&2 || true
  [ -x "$profdata" ] && echo "$profdata"
}

record_profile() {
  rm -rf "$profiles"
  LLVM_PROFILE_FILE="$profiles/%p.profraw" cargo run --quiet --profile tool -p redis-lock-bench --bin bench -- \
    --quick --only pair,contended --results "$profiles/bench" --module "$1" "$REDIS_SERVER" >"$profiles.log" 2>&1 ||
    say "a part of the load failed, and the profile goes without it: $profiles.log"
}

build_module() {
  built=$build/portable/$host/release/libredis_lock.so
  if profdata=$(find_profdata); then
    if [ -n "${PROFILE:-}" ]; then
      mkdir -p "$profiles"
      cp "$PROFILE" "$profiles/merged.profdata"
    else
      say "building the module twice and running it under load, which takes some minutes"
      # Zig can't link the runtime of profiles.
      RUSTFLAGS="-Cprofile-generate=$profiles" build_here --lib
      record_profile "$built"
      "$profdata" merge --sparse -o "$profiles/merged.profdata" "$profiles"/*.profraw
    fi
    RUSTFLAGS="-Cprofile-use=$profiles/merged.profdata" build_portable --lib
  else
    say "there is no llvm-profdata (rustup component add llvm-tools), so the module has no profile"
    build_portable --lib
  fi
  cp "$built" "$out/"
}

pack_portable() {
  # If the module of `make build` is the same as last time, so are the sources.
  if ! cmp -s "$build/release/libredis_lock.so" "$out/plain.so"; then
    build_module
    cp "$build/release/libredis_lock.so" "$out/plain.so"
  fi
  build_portable --package redis-lock-cli
  cp "$build/portable/$host/release/redis-lock" "$out/"
}

mkdir -p "$out"
case ${PROFILED-yes}:$host in
  :*) pack_plain "PROFILED is empty" ;;
  *-linux-gnu) pack_portable ;;
  *) pack_plain "this system has no glibc" ;;
esac
sh scripts/command-files.sh "$out"
