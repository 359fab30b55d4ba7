#!/bin/sh
# deps.sh        finds what building and testing needs, and installs what is missing
# deps.sh env    prints where it was found, as shell exports (installs nothing)
#
# Needed: cargo, a C compiler, libclang (bindgen reads the server's module header
# with it), a Redis >= 7.0 or Valkey >= 8.0 server and its command-line client.
# Set REDIS_SERVER to use a certain server, LIBCLANG_PATH for a certain libclang.
set -u

root=$(cd "$(dirname "$0")/.." && pwd)

say() { echo "deps: $*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# --- what is there -----------------------------------------------------------

rust_wanted() { sed -n 's/^rust-version *= *"1\.\([0-9]*\).*/\1/p' "$root/Cargo.toml"; }
rust_found() { cargo --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\).*/\1/p'; }

compiler_works() {
  # macOS has a stub in place of cc that opens a dialogue when the tools are missing.
  if [ "$(uname -s)" = Darwin ]; then xcode-select -p >/dev/null 2>&1; else have cc; fi
}

# "Redis 7.0" or "Valkey 8.1" for a server program, nothing for anything else.
version_of() {
  "$1" --version 2>/dev/null | sed -n 's/^\([A-Za-z]*\) server v=\([0-9]*\.[0-9]*\).*/\1 \2/p'
}

new_enough() {
  version=$(version_of "$1")
  major=${version#* }
  major=${major%%.*}
  case $version in
    Redis*) [ "$major" -ge 7 ] ;;
    Valkey*) [ "$major" -ge 8 ] ;;
    *) false ;;
  esac
}

# Homebrew keeps some packages out of PATH.
program() {
  command -v "$1" && return
  for folder in /opt/homebrew/bin /usr/local/bin /opt/homebrew/opt/*/bin /usr/local/opt/*/bin; do
    [ -x "$folder/$1" ] && echo "$folder/$1" && return
  done
  return 1
}

find_server() {
  if [ -n "${REDIS_SERVER:-}" ]; then
    new_enough "$REDIS_SERVER" && command -v "$REDIS_SERVER"
    return
  fi
  for name in redis-server valkey-server; do
    found=$(program "$name") && new_enough "$found" && echo "$found" && return
  done
  return 1
}

# The client that came with the server, or else any.
find_cli() {
  server=$(find_server) || return 1
  for name in redis-cli valkey-cli; do
    [ -x "${server%/*}/$name" ] && echo "${server%/*}/$name" && return
  done
  program redis-cli || program valkey-cli
}

holds_libclang() {
  for file in "$1"/libclang.so "$1"/libclang.so.* "$1"/libclang-*.so* "$1"/libclang.dylib; do
    case $file in *-cpp*) continue ;; esac
    [ -e "$file" ] && echo "$file" && return
  done
  return 1
}

# Where bindgen looks by itself, so that LIBCLANG_PATH can stay unset.
libclang_in_place() {
  for folder in /usr/local/llvm*/lib* /usr/local/lib* /usr/local/lib*/* /usr/local/lib*/*/* \
    /usr/lib* /usr/lib*/* /usr/lib*/*/* /usr/local/opt/llvm*/lib \
    /Library/Developer/CommandLineTools/usr/lib \
    /Applications/Xcode.app/Contents/Developer/Toolchains/XcodeDefault.xctoolchain/usr/lib; do
    holds_libclang "$folder" && return
  done
  have llvm-config && holds_libclang "$(llvm-config --libdir)"
}

# Homebrew's, a vendor's, or the one that `pip install libclang` brings.
libclang_elsewhere() {
  for folder in /opt/homebrew/opt/llvm*/lib /home/linuxbrew/.linuxbrew/opt/llvm*/lib \
    /opt/llvm*/lib /opt/local/libexec/llvm*/lib; do
    holds_libclang "$folder" && return
  done
  for python in python3 python; do
    have "$python" || continue
    folder=$("$python" -c 'import clang; print(list(clang.__path__)[0])' 2>/dev/null) || continue
    holds_libclang "$folder/native" && return
  done
  return 1
}

find_libclang() {
  if [ -n "${LIBCLANG_PATH:-}" ]; then
    if [ -f "$LIBCLANG_PATH" ]; then echo "$LIBCLANG_PATH"; else holds_libclang "$LIBCLANG_PATH"; fi
    return
  fi
  libclang_in_place || libclang_elsewhere
}

# A libclang without clang's own headers (stddef.h and such) borrows the compiler's.
borrowed_headers() {
  have clang && return
  real=$(readlink -f "$1" 2>/dev/null) || real=$1
  folder=$(dirname "$real")
  for header in "$folder"/clang/*/include/stddef.h "$folder"/../lib/clang/*/include/stddef.h \
    "$folder"/../llvm-*/lib/clang/*/include/stddef.h; do
    [ -e "$header" ] && return
  done
  headers=$(cc -print-file-name=include 2>/dev/null) || return 0
  [ -e "$headers/stddef.h" ] && echo "-I$headers"
}

# --- env ---------------------------------------------------------------------

export_line() { printf "export %s='%s'\n" "$1" "$(printf %s "$2" | sed "s/'/'\\\\''/g")"; }

print_env() {
  found=$(find_server) && export_line REDIS_SERVER "$found"
  found=$(find_cli) && export_line REDIS_CLI "$found"
  library=$(find_libclang) || return 0
  [ -n "${LIBCLANG_PATH:-}" ] || libclang_in_place >/dev/null || export_line LIBCLANG_PATH "${library%/*}"
  if [ -z "${BINDGEN_EXTRA_CLANG_ARGS:-}" ]; then
    headers=$(borrowed_headers "$library")
    [ -z "$headers" ] || export_line BINDGEN_EXTRA_CLANG_ARGS "$headers"
  fi
}

# --- install -----------------------------------------------------------------

manager() {
  for name in apt-get dnf apk pacman brew; do have "$name" && echo "$name" && return; done
  return 1
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif have sudo; then sudo "$@"
  else say "needs root, and sudo is missing: run '$*' as root"; return 1
  fi
}

# The names of a part's packages with this manager, best first.
packages() {
  case $1:$2 in
    compiler:apt-get) echo 'gcc libc6-dev' ;;
    compiler:apk) echo 'gcc musl-dev' ;;
    compiler:*) echo gcc ;;
    libclang:apt-get) echo libclang-dev ;;
    libclang:apk) echo clang-libclang ;;
    libclang:brew) echo llvm ;;
    libclang:*) echo clang ;;
    server:apt-get) echo 'redis-server valkey-server' ;;
    server:pacman) echo 'valkey redis' ;;
    server:*) echo 'redis valkey' ;;
  esac
}

index_is_fresh=
install() {
  [ "$manager" != none ] || return 1
  say "installing $* with $manager"
  case $manager in
    apt-get)
      [ -n "$index_is_fresh" ] || as_root apt-get update -qq || return 1
      index_is_fresh=yes
      as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "$@" ;;
    dnf) as_root dnf install -y "$@" ;;
    apk) as_root apk add "$@" ;;
    pacman) as_root pacman -S --noconfirm --needed "$@" ;;
    brew) brew install "$@" ;;
  esac >&2
}

# Debian's package starts a service on the port that `make run` wants; it was
# installed for its program only.
leave_service_off() {
  if [ -d /run/systemd/system ]; then as_root systemctl disable --now "$1"
  elif [ -x "/etc/init.d/$1" ]; then as_root "/etc/init.d/$1" stop
  fi >/dev/null 2>&1 || true
}

need_server() {
  find_cli >/dev/null && return
  [ -z "${REDIS_SERVER:-}" ] || die "REDIS_SERVER=$REDIS_SERVER is no Redis >= 7.0 or Valkey >= 8.0 with its client"
  for package in $(packages server "$manager"); do
    install "$package" || continue
    [ "$manager" != apt-get ] || leave_service_off "$package"
    find_cli >/dev/null && return
  done
  die "install Redis >= 7.0 or Valkey >= 8.0 with its client (see https://redis.io/downloads), or set REDIS_SERVER"
}

need_compiler() {
  compiler_works && return
  [ "$(uname -s)" != Darwin ] || die "install the C compiler: xcode-select --install"
  # shellcheck disable=SC2046  # several package names
  install $(packages compiler "$manager")
  compiler_works || die "install a C compiler that answers to cc"
}

need_libclang() {
  find_libclang >/dev/null && return
  [ -z "${LIBCLANG_PATH:-}" ] || die "LIBCLANG_PATH=$LIBCLANG_PATH holds no libclang"
  # shellcheck disable=SC2046
  install $(packages libclang "$manager")
  find_libclang >/dev/null || die "install libclang (Debian: libclang-dev, PyPI: libclang), or set LIBCLANG_PATH"
}

need_cargo() {
  have cargo || die "install Rust (https://rustup.rs) and open a new shell: cargo is not in PATH"
  [ "$(rust_found)" -ge "$(rust_wanted)" ] ||
    die "this project needs Rust 1.$(rust_wanted), here is 1.$(rust_found): rustup update (https://rustup.rs)"
}

case ${1:-install} in
  env) print_env ;;
  install)
    need_cargo
    manager=$(manager) || manager=none
    need_compiler
    need_libclang
    need_server ;;
  *) die "usage: deps.sh [env]" ;;
esac
