#!/bin/sh
# deps.sh          finds what building, testing and `make memcheck` need, and installs what is missing
# deps.sh build    the same for building alone: cargo, a C compiler and libclang (bindgen reads the
#                  server's module header with it)
# deps.sh run      the same for building and running: besides, a Redis >= 7.0 or Valkey >= 8.0 server
#                  and its command-line client
# deps.sh test     the same for testing: besides, cargo-nextest, which runs the tests
# deps.sh env      prints where it was found, as shell exports (installs nothing)
#
# valgrind, for `make memcheck`, is installed where there is a package of that name, and not missed
# anywhere else.
# Set REDIS_SERVER to use a certain server, LIBCLANG_PATH for a certain libclang.
set -u

root=$(cd "$(dirname "$0")/.." && pwd)

say() { echo "deps: $*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# --- what is there -----------------------------------------------------------

rust_wanted() { sed -n 's/^rust-version *= *"1\.\([0-9]*\).*/\1/p' "$root/Cargo.toml"; }
rust_found() { cargo --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9][0-9]*\).*/\1/p'; }

compiler_works() {
  # macOS has a stub in place of cc that opens a dialogue when the tools are missing.
  if [ "$(uname -s)" = Darwin ]; then xcode-select -p >/dev/null 2>&1; else have cc; fi
}

# "Redis 7.0" or "Valkey 8.1" for a server program, nothing for anything else.
version_of() {
  "$1" --version 2>/dev/null | sed -n 's/^\([A-Za-z]*\) server v=\([0-9]*\.[0-9]*\).*/\1 \2/p'
}

# Whether a server, or a package of one, of this name and version will do.
supported() {
  major=${2%%.*}
  case $1 in
    [Rr]edis*) [ "$major" -ge 7 ] ;;
    [Vv]alkey*) [ "$major" -ge 8 ] ;;
    *) false ;;
  esac
}

new_enough() {
  version=$(version_of "$1")
  supported "${version% *}" "${version#* }"
}

# Homebrew keeps some packages out of PATH.
program() {
  command -v "$1" && return
  [ "$(uname -s)" = Darwin ] || return 1
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

# A part's packages with this manager; those of the server are alternatives, best first.
packages() {
  case $1:$manager in
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
    valgrind:*) echo valgrind ;;
  esac
}

# The version in which the manager's index offers a package; nothing where it has none.
offered() {
  case $manager in
    apt-get)
      LC_ALL=C apt-cache policy "$1" | sed -n 's/^ *Candidate: *\([0-9]*:\)\{0,1\}\([0-9][0-9.]*\).*/\2/p' ;;
    dnf) LC_ALL=C dnf -q info "$1" | sed -n 's/^Version *: *//p' | tail -n 1 ;;
    apk) apk search -e "$1" | sed -n "s/^$1-\([0-9][0-9.]*\).*/\1/p" | tail -n 1 ;;
    pacman) LC_ALL=C pacman -Si "$1" | sed -n 's/^Version *: *\([0-9]*:\)\{0,1\}//p' | tail -n 1 ;;
  esac 2>/dev/null
}

# The package to get a server from. An index that knows none of them was never fetched, or can't be
# asked: then it is the one that should be there.
server_package() {
  too_old=
  for package in $(packages server); do
    version=$(offered "$package")
    [ -n "$version" ] || continue
    supported "$package" "$version" && echo "$package" && return
    too_old="${too_old:+$too_old, }$package $version"
  done
  [ -z "$too_old" ] || die "$manager offers $too_old, too old to be installed: $(advice server)"
  packages server | cut -d ' ' -f 1
}

packages_for() {
  for part in "$@"; do
    case $part in
      server) server_package || return ;;
      *) packages "$part" ;;
    esac
  done
}

has() {
  case $1 in
    compiler) compiler_works ;;
    libclang) find_libclang ;;
    server) find_cli ;;
    valgrind) have valgrind ;;
  esac >/dev/null
}

missing() { for part in "$@"; do has "$part" || echo "$part"; done; }

# What no package can mend: a path that was set and is wrong, Apple's compiler.
beyond_packages() {
  case $1 in
    compiler) [ "$(uname -s)" = Darwin ] ;;
    libclang) [ -n "${LIBCLANG_PATH:-}" ] ;;
    server) [ -n "${REDIS_SERVER:-}" ] ;;
  esac
}

advice() {
  case $1:$(beyond_packages "$1" && echo set) in
    compiler:set) echo "install the C compiler: xcode-select --install" ;;
    compiler:*) echo "install a C compiler that answers to cc" ;;
    libclang:set) echo "LIBCLANG_PATH=$LIBCLANG_PATH holds no libclang" ;;
    libclang:*) echo "install libclang (Debian: libclang-dev, PyPI: libclang), or set LIBCLANG_PATH" ;;
    server:set) echo "REDIS_SERVER=$REDIS_SERVER is no Redis >= 7.0 or Valkey >= 8.0 with its client" ;;
    server:*) echo "install Redis >= 7.0 or Valkey >= 8.0 with its client (see https://redis.io/downloads), or set REDIS_SERVER" ;;
  esac
}

# The commands by which packages are installed, as words.
refresh_command() {
  case $manager in
    apt-get) echo 'apt-get update -qq' ;;
    apk) echo 'apk update -q' ;;
  esac
}

install_command() {
  case $manager in
    apt-get) echo "env DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends $*" ;;
    dnf) echo "dnf install -y $*" ;;
    apk) echo "apk add $*" ;;
    pacman) echo "pacman -S --noconfirm --needed $*" ;;
    brew) echo "brew install $*" ;;
  esac
}

# Debian's package starts a service on the port that `make run` wants; it was
# installed for its program only.
service_off_command() {
  [ "$manager" = apt-get ] || return 0
  for package in "$@"; do
    case $package in *-server) ;; *) continue ;; esac
    if [ -d /run/systemd/system ]; then echo "systemctl disable --now $package"
    elif [ -x "/etc/init.d/$package" ]; then echo "/etc/init.d/$package stop"
    fi
  done
}

# All that root has to do for these packages, in one line for a shell.
root_line() {
  { refresh_command; install_command "$@"; service_off_command "$@"; } | awk '{ printf "%s%s", and, $0; and = " && " }'
}

may_be_root() { [ "$manager" = brew ] || [ "$(id -u)" = 0 ] || have sudo; }

as_root() {
  if [ "$manager" = brew ] || [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi >&2
}

# shellcheck disable=SC2046  # commands are words
refresh() { [ -z "$(refresh_command)" ] || as_root $(refresh_command); }

# shellcheck disable=SC2046
install() {
  say "installing $* with $manager"
  as_root $(install_command "$@") || return
  [ -z "$(service_off_command "$@")" ] || as_root $(service_off_command "$@") >/dev/null 2>&1 || true
}

say_root_line() {
  say "as root, this has to succeed before trying again:"
  printf '%s\n' "$(root_line "$@")" >&2
}

# Ends the script where one of these missing parts can't come from a package.
refuse_beyond_packages() {
  hopeless=
  for part in "$@"; do
    if [ "$manager" = none ] || beyond_packages "$part"; then
      say "$(advice "$part")"
      hopeless=yes
    fi
  done
  [ -z "$hopeless" ] || exit 1
}

# The packages of parts that can do without, as far as there are any.
packages_offered_for() {
  for part in "$@"; do
    if [ -n "$(offered "$part")" ]; then echo "$part"; else say "$manager offers no $part here"; fi
  done
}

# Installs two lists of packages, of which the second can do without.
# shellcheck disable=SC2086  # lists of words
install_lists() {
  if [ -n "$1" ]; then install $1 || { say_root_line $1 $2; exit 1; }; fi
  [ -z "$2" ] || install $2 || say_root_line $2
}

# Brings in what is missing: two lists of parts, of which the second can do without. The manager's
# index is fetched before it is asked, so that nothing is installed that wouldn't do.
# shellcheck disable=SC2046,SC2086
bring() {
  needed=$(missing $1) wished=$(missing $2)
  [ -n "$needed$wished" ] || return 0
  refuse_beyond_packages $needed
  [ "$manager" != none ] || return 0
  by_root=no
  if may_be_root && refresh; then by_root=yes; fi
  names=$(packages_for $needed) || exit 1
  extra=$(packages_offered_for $wished)
  [ -n "$names$extra" ] || return 0
  if [ "$by_root" = yes ]; then install_lists "$names" "$extra"; else say_root_line $names $extra; fi
  for part in $needed; do has "$part" || die "$(advice "$part")"; done
}

need_cargo() {
  have cargo || die "install Rust (https://rustup.rs) and open a new shell: cargo is not in PATH"
  found=$(rust_found)
  if [ -z "$found" ]; then
    said=$(cargo --version 2>&1 | head -n 1)
    die "$(command -v cargo) doesn't work, 'cargo --version' says '${said:-nothing}': try rustup default stable (https://rustup.rs)"
  fi
  [ "$found" -ge "$(rust_wanted)" ] ||
    die "this project needs Rust 1.$(rust_wanted), here is 1.$found: rustup update (https://rustup.rs)"
}

# cargo finds its subcommands in PATH, and where it installs them.
nextest_found() { have cargo-nextest || [ -x "${CARGO_HOME:-${HOME:-}/.cargo}/bin/cargo-nextest" ]; }

# A version that the oldest Rust allowed compiles. It is built away from what cargo builds here.
need_nextest() {
  nextest_found && return
  say "building cargo-nextest, which takes some minutes, once"
  (
    unset CARGO_TARGET_DIR
    cargo install --locked --version 0.9.114 --no-default-features --features default-no-update cargo-nextest >&2
  )
  nextest_found || die "install cargo-nextest (https://nexte.st), which runs the tests"
}

if [ "${1:-}" = env ]; then
  print_env
  exit
fi
case ${1:-} in
  build) needed='compiler libclang' wished= ;;
  run | test) needed='compiler libclang server' wished= ;;
  '') needed='compiler libclang server' wished=valgrind ;;
  *) die "usage: deps.sh [build | run | test | env]" ;;
esac
need_cargo
manager=$(manager) || manager=none
bring "$needed" "$wished"
case ${1:-} in '' | test) need_nextest ;; esac
