#!/bin/sh
# asan.sh SECONDS [SOURCE]   plays the server tests, and random commands for some seconds, with
#                            AddressSanitizer in the server and in the module
#
# 1. SOURCE is a directory with a server's source. The default is Debian's source package redis, which
#    apt gets with the machine's own list of Debian's archives.
# 2. The server is built with the allocator of the C library. So each allocation of the module and of
#    the server is checked.
# 3. A stable toolchain does, if it is told to take an unstable option.
# 4. A server that finds a fault ends and writes a report. A test may not notice that a server that it
#    kills ended before, so any report fails the run.
set -eu
cd "$(dirname "$0")/.."

target=$(rustc -vV | sed -n 's/^host: //p')
folder=${CARGO_TARGET_DIR:-$PWD/target}/asan
mkdir -p "$folder/reports"
rm -rf "$folder/reports"/*

# get_source: unpacks Debian's source of Redis in $folder/redis.
get_source() {
  [ ! -d "$folder/redis" ] || return 0
  mkdir -p "$folder/apt/lists/partial" "$folder/apt/etc"
  cat /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list.d/ubuntu.sources 2>/dev/null |
    sed "s/^Types: .*/Types: deb-src/" >"$folder/apt/etc/own.sources"
  set -- -qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$folder/apt/etc" \
    -o "Dir::State::lists=$folder/apt/lists" -o APT::Sandbox::User=root
  (
    cd "$folder/apt"
    apt-get "$@" update
    apt-get "$@" source --download-only redis
    tar xf redis_*.orig.tar.*
    mv redis-*/ "$folder/redis"
  )
}

build_server() {
  make --directory "$1" SANITIZER=address MALLOC=libc BUILD_TLS=no USE_SYSTEMD=no redis-server \
    >"$folder/server.log" 2>&1 || { tail -n 20 "$folder/server.log" >&2; exit 1; }
}

[ -n "${2:-}" ] || get_source
source=${2:-$folder/redis}
build_server "$source/src"
RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address \
  cargo build --quiet --profile checked --lib --target "$target" --target-dir "$folder/target"

export REDIS_SERVER="$source/src/redis-server"
export REDIS_LOCK_MODULE="$folder/target/$target/checked/libredis_lock.so"
export ASAN_OPTIONS="detect_leaks=0:log_path=$folder/reports/report"
# Tests that move the clock load a library in front of the one of AddressSanitizer, which refuses that.
tests='not binary_id(redis-lock::packaging) and not test(/^clocks::/)'
status=0
cargo nextest run --no-fail-fast --package redis-lock -E "${ONLY:-$tests}" || status=1
cargo run --quiet --profile tool --package redis-lock-fuzz -- --seconds "$1" "$REDIS_SERVER" || status=1
for report in "$folder/reports"/*; do
  [ ! -e "$report" ] || { head -n 40 "$report" >&2; status=1; }
done
exit "$status"
