#!/bin/sh
# deps.sh [build | run | test | deb | musl | env]
#
# Finds the dependencies of this project, and installs the missing ones with the system's package
# manager. If that needs root and sudo is missing or refuses, the script prints the command instead,
# and fails.
#
#   build   cargo, a C compiler, and libclang, with which bindgen reads the server's module header
#   run     the same, a Redis >= 7.0 or Valkey >= 8.0 server, and its command-line client
#   test    the same, and cargo-nextest, which runs the tests
#   deb     dpkg-shlibdeps, which finds out what the Debian package depends on, and xz, which packs it
#   musl    musl-gcc, with which the module is built for musl
#   env     prints the paths that were found, in the form of shell exports; installs nothing
#
# Without an argument it does what `test` does, and installs valgrind for `make memcheck` if it can.
# REDIS_SERVER names a certain server, LIBCLANG_PATH a certain libclang.
set -u

root=$(cd "$(dirname "$0")/.." && pwd)

say() { echo "deps: $*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# --- find ----------------------------------------------------------------------------------------

rust_wanted() { sed -n 's/^rust-version *= *"1\.\([0-9]*\).*/\1/p' "$root/Cargo.toml"; }
rust_found() { cargo --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9][0-9]*\).*/\1/p'; }

find_compiler() {
  # Apple puts a stub in place of cc, which opens a dialog if the tools are missing.
  if [ "$(uname -s)" = Darwin ]; then xcode-select -p; else command -v cc; fi
}

# Returns true for a server that the module supports.
is_supported() {
  case $("$1" --version 2>/dev/null) in
    'Redis server v='[789].* | 'Redis server v='[1-9][0-9].*) ;;
    'Valkey server v='[89].* | 'Valkey server v='[1-9][0-9].*) ;;
    *) false ;;
  esac
}

# Prints the path of a program. Homebrew keeps some programs out of PATH.
find_program() {
  command -v "$1" && return
  [ "$(uname -s)" = Darwin ] || return 1
  for folder in /opt/homebrew /usr/local /opt/homebrew/opt/* /usr/local/opt/*; do
    [ -x "$folder/bin/$1" ] && echo "$folder/bin/$1" && return
  done
  return 1
}

find_server() {
  for name in ${REDIS_SERVER:-redis-server valkey-server}; do
    path=$(find_program "$name") && is_supported "$path" && echo "$path" && return
  done
  return 1
}

# Prints the client that came with the server, or any other.
find_cli() {
  server=$(find_server) || return 1
  for name in redis-cli valkey-cli; do
    [ -x "${server%/*}/$name" ] && echo "${server%/*}/$name" && return
  done
  find_program redis-cli || find_program valkey-cli
}

# Prints the first libclang in these directories.
libclang_in() {
  for folder in "$@"; do
    for file in "$folder"/libclang.so "$folder"/libclang.so.* "$folder"/libclang-[0-9]*.so* "$folder"/libclang.dylib; do
      [ -e "$file" ] && echo "$file" && return
    done
  done
  return 1
}

# The directories that bindgen searches by itself.
libclang_in_place() {
  libclang_in /usr/local/llvm*/lib* /usr/local/lib* /usr/local/lib*/* /usr/local/lib*/*/* /usr/lib* /usr/lib*/* \
    /usr/lib*/*/* /usr/local/opt/llvm*/lib /Library/Developer/CommandLineTools/usr/lib \
    /Applications/Xcode.app/Contents/Developer/Toolchains/XcodeDefault.xctoolchain/usr/lib ||
    { have llvm-config && libclang_in "$(llvm-config --libdir)"; }
}

find_libclang() {
  if [ -f "${LIBCLANG_PATH:-}" ]; then echo "$LIBCLANG_PATH"; return; fi
  if [ -n "${LIBCLANG_PATH:-}" ]; then libclang_in "$LIBCLANG_PATH"; return; fi
  libclang_in_place || libclang_in /opt/homebrew/opt/llvm*/lib /home/linuxbrew/.linuxbrew/opt/llvm*/lib \
    /opt/llvm*/lib /opt/local/libexec/llvm*/lib ||
    # The directory of the package from PyPI.
    libclang_in "$(python3 -c 'import clang; print(list(clang.__path__)[0])' 2>/dev/null)/native"
}

# Prints the compiler's include directory if libclang comes without headers of its own (stddef.h).
borrowed_headers() {
  have clang && return
  folder=$(dirname "$(readlink -f "$1" 2>/dev/null || echo "$1")")
  for header in "$folder"/clang/*/include/stddef.h "$folder"/../lib/clang/*/include/stddef.h \
    "$folder"/../llvm-*/lib/clang/*/include/stddef.h; do
    [ -e "$header" ] && return
  done
  headers=$(cc -print-file-name=include 2>/dev/null) && [ -e "$headers/stddef.h" ] && echo "-I$headers"
}

find_shlibdeps() { command -v dpkg-shlibdeps; }

find_xz() { command -v xz; }

find_musl() { command -v musl-gcc; }

find_pip() { python3 -m pip --version >/dev/null 2>&1; }

# cargo finds its subcommands in PATH, and in the directory in which it installs them.
find_nextest() { have cargo-nextest || [ -x "${CARGO_HOME:-${HOME:-}/.cargo}/bin/cargo-nextest" ]; }

# --- env -----------------------------------------------------------------------------------------

export_line() { printf "export %s='%s'\n" "$1" "$(printf %s "$2" | sed "s/'/'\\\\''/g")"; }

print_env() {
  found=$(find_server) && export_line REDIS_SERVER "$found"
  found=$(find_cli) && export_line REDIS_CLI "$found"
  library=$(find_libclang) || return 0
  [ -n "${LIBCLANG_PATH:-}" ] || libclang_in_place >/dev/null || export_line LIBCLANG_PATH "${library%/*}"
  headers=${BINDGEN_EXTRA_CLANG_ARGS:+set}
  [ -n "$headers" ] || headers=$(borrowed_headers "$library")
  [ -z "$headers" ] || [ "$headers" = set ] || export_line BINDGEN_EXTRA_CLANG_ARGS "$headers"
}

# --- install -------------------------------------------------------------------------------------

find_manager() { for name in apt-get dnf apk pacman brew; do have "$name" && echo "$name" && return; done; }

# Those of the server are alternatives, the best first.
packages() {
  case $1:$manager in
    compiler:apt-get) echo gcc libc6-dev ;;
    compiler:apk) echo gcc musl-dev ;;
    compiler:*) echo gcc ;;
    libclang:apt-get) echo libclang-dev ;;
    libclang:apk) echo clang-libclang ;;
    libclang:brew) echo llvm ;;
    libclang:*) echo clang ;;
    shlibdeps:*) echo dpkg-dev ;;
    xz:apt-get) echo xz-utils ;;
    musl:apt-get) echo musl-tools ;;
    musl:*) echo musl-gcc ;;
    xz:*) echo xz ;;
    cli:apt-get) echo redis-server valkey-server ;;
    cli:*) echo valkey redis ;;
  esac
}

# Prints the command that installs packages, for a shell. Debian's package starts a server on the
# port that `make run` uses, so the command stops that service.
install_command() {
  case $manager in
    apt-get)
      stop=
      for package in "$@"; do
        case $package in *-server) stop=" && { service $package stop; systemctl disable $package; true; } >/dev/null 2>&1" ;; esac
      done
      echo "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends $*$stop" ;;
    dnf) echo "dnf install -y $*" ;;
    apk) echo "apk add --update-cache $*" ;;
    pacman) echo "pacman -Sy --noconfirm --needed $*" ;;
    brew) echo "brew install $*" ;;
  esac
}

install() {
  say "installing $* with $manager"
  command=$(install_command "$@")
  case $manager:$(id -u) in
    brew:* | *:0) sh -c "$command" >&2 && return ;;
    *) have sudo && sudo sh -c "$command" >&2 && return ;;
  esac
  say "run this as root, then try again:"
  printf '%s\n' "$command" >&2
  return 1
}

advice() {
  case $1 in
    compiler) echo "install a C compiler that answers to cc (macOS: xcode-select --install)" ;;
    libclang) echo "install libclang (Debian: libclang-dev, PyPI: libclang), or set LIBCLANG_PATH${LIBCLANG_PATH:+, which is $LIBCLANG_PATH}" ;;
    shlibdeps) echo "install dpkg-shlibdeps (Debian: dpkg-dev)" ;;
    xz) echo "install xz (Debian: xz-utils)" ;;
    musl) echo "install musl-gcc (Debian: musl-tools)" ;;
    cli) echo "install Redis >= 7.0 or Valkey >= 8.0 with its client (https://redis.io/downloads), or set REDIS_SERVER${REDIS_SERVER:+, which is $REDIS_SERVER}" ;;
  esac
}

may_be_root() { [ "$manager" = brew ] || [ "$(id -u)" = 0 ] || have sudo; }

has_all() { for part in "$@"; do "find_$part" >/dev/null 2>&1 || return; done; }

# Installs the packages of the parts that are missing, and fails if a part is missing afterwards. If
# there is no server then, because its package is missing or too old, it tries the next server. No
# package helps if a path is set to something else, or if Apple's compiler is missing.
need() {
  wanted= servers=none
  for part in "$@"; do
    "find_$part" >/dev/null 2>&1 && continue
    case $part:$(uname -s) in
      compiler:Darwin) die "$(advice compiler)" ;;
      libclang:*) [ -z "${LIBCLANG_PATH:-}" ] || die "$(advice libclang)" ;;
      cli:*) [ -z "${REDIS_SERVER:-}" ] || die "$(advice cli)" ;;
    esac
    [ -n "$manager" ] || die "$(advice "$part")"
    case $part in
      cli) servers=$(packages cli) ;;
      *) wanted="$wanted $(packages "$part")" ;;
    esac
  done
  for choice in $servers; do
    has_all "$@" && return
    # shellcheck disable=SC2086  # a list of words
    install $wanted ${choice#none}
    may_be_root || exit 1
  done
  for part in "$@"; do has_all "$part" || die "$(advice "$part")"; done
}

need_cargo() {
  have cargo || die "install Rust (https://rustup.rs) and open a new shell: cargo is not in PATH"
  found=$(rust_found)
  if [ -z "$found" ]; then
    said=$(cargo --version 2>&1 | head -n 1)
    die "$(command -v cargo) doesn't work, 'cargo --version' says '${said:-nothing}': try rustup default stable"
  fi
  [ "$found" -ge "$(rust_wanted)" ] || die "this project needs Rust 1.$(rust_wanted), here is 1.$found: rustup update"
}

# Gets cargo-nextest once. If there is no build of it for this system, builds a version that the
# oldest supported Rust compiles.
need_nextest() {
  find_nextest && return
  # Debian's pip takes some seconds, and to build cargo-nextest takes minutes.
  case $manager in apt-get) find_pip || { may_be_root && install python3-pip; } ;; esac
  sh "$root/scripts/prebuilt.sh" cargo-nextest && return
  say "building cargo-nextest, which takes two minutes, once"
  (
    unset CARGO_TARGET_DIR
    cargo install --debug --locked --version 0.9.114 --no-default-features --features default-no-update cargo-nextest >&2
  )
  find_nextest || die "install cargo-nextest (https://nexte.st), which runs the tests"
}

manager=$(find_manager)
case ${1:-} in
  env) print_env ;;
  build) need_cargo; need compiler libclang ;;
  run) need_cargo; need compiler libclang cli ;;
  test) need_cargo; need compiler libclang cli; need_nextest ;;
  deb) need shlibdeps xz ;;
  musl) need musl ;;
  '')
    need_cargo; need compiler libclang cli; need_nextest
    have valgrind || install valgrind || say "without valgrind, make memcheck and make instructions don't run" ;;
  *) die "usage: deps.sh [build | run | test | deb | musl | env]" ;;
esac
