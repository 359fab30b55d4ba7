#!/bin/sh
# deps.sh [build | run | test | deb | musl | release | env]
#
# Finds the dependencies of this project, and installs the missing ones with the system's package
# manager, all at once. If that needs root and sudo is missing or refuses, the script prints the
# command instead, and fails.
#
#   build   cargo, a C compiler, and libclang, with which bindgen reads the server's module header
#   run     the same, a Redis >= 7.0 or Valkey >= 8.0 server, and its command-line client
#   test    the same, and cargo-nextest, which runs the tests
#   deb     as run, and dpkg-shlibdeps, which finds out what the Debian package depends on, xz, which packs it, and
#           pip, which gets the linker of packages
#   musl    musl-gcc, with which the module is built for musl
#   release the programs that pack the client libraries: Python's venv, npm, Maven, Go, Composer; git
#   env     prints the paths that were found, in the form of shell exports; installs nothing
#
# Without an argument it does what `test` does, and installs valgrind for `make memcheck` if it can.
# REDIS_SERVER names a certain server, LIBCLANG_PATH a certain libclang.
set -u

root=$(cd "$(dirname "$0")/.." && pwd)

# The packages of each dependency. Packages of one dependency are joined by commas.
packages='
dependency  apt-get             dnf       apk               pacman    brew
compiler    gcc,libc6-dev       gcc       gcc,musl-dev      gcc       -
libclang    libclang-dev        clang     clang-libclang    clang     llvm
server      redis-server        valkey    valkey,valkey-cli valkey    valkey
pip         python3-pip         -         -                 -         -
valgrind    valgrind            valgrind  valgrind          valgrind  -
deb         dpkg-dev,xz-utils   -         -                 -         -
musl        musl-tools          musl-gcc  -                 musl      -
git         git                 -         -                 -         -
venv        python3-venv        -         -                 -         -
npm         npm                 -         -                 -         -
maven       maven,default-jdk-headless - -               -         -
go          golang-go           -         -                 -         -
composer    composer,unzip      -         -                 -         -'

say() { echo "deps: $*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# --- find ----------------------------------------------------------------------------------------

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

find_program_of_server() {
  for name in ${REDIS_SERVER:-redis-server valkey-server}; do
    path=$(find_program "$name") && is_supported "$path" && echo "$path" && return
  done
  return 1
}

# Prints the client that came with the server, or any other.
find_cli() {
  for name in redis-cli valkey-cli; do
    [ -x "${1%/*}/$name" ] && echo "${1%/*}/$name" && return
  done
  find_program redis-cli || find_program valkey-cli
}

find_server() { server=$(find_program_of_server) && find_cli "$server"; }

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

find_pip() { python3 -m pip --version; }

find_deb() { have dpkg-shlibdeps && have xz; }

find_musl() { have musl-gcc; }

find_git() { have git; }
find_venv() { python3 -c 'import ensurepip, venv'; }
find_npm() { have npm; }
find_maven() { have mvn && have jar; }
find_go() { have go || [ -x /usr/local/go/bin/go ]; }
find_composer() { have composer; }

# cargo finds its subcommands in PATH, and in the directory in which it installs them.
find_nextest() { have cargo-nextest || [ -x "${CARGO_HOME:-${HOME:-}/.cargo}/bin/cargo-nextest" ]; }

# --- env -----------------------------------------------------------------------------------------

export_line() { printf "export %s='%s'\n" "$1" "$(printf %s "$2" | sed "s/'/'\\\\''/g")"; }

print_env() {
  found=$(find_program_of_server) && export_line REDIS_SERVER "$found"
  found=$(find_server) && export_line REDIS_CLI "$found"
  library=$(find_libclang) || return 0
  [ -n "${LIBCLANG_PATH:-}" ] || libclang_in_place >/dev/null || export_line LIBCLANG_PATH "${library%/*}"
  [ -z "${BINDGEN_EXTRA_CLANG_ARGS:-}" ] || return 0
  headers=$(borrowed_headers "$library")
  [ -z "$headers" ] || export_line BINDGEN_EXTRA_CLANG_ARGS "$headers"
}

# --- install -------------------------------------------------------------------------------------

manager=$(for name in apt-get dnf apk pacman brew; do have "$name" && echo "$name" && break; done)

packages_of() {
  echo "$packages" | awk -v name="$1" -v manager="$manager" '
    $1 == "dependency" { for (at = 2; at <= NF; at++) if ($at == manager) column = at }
    $1 == name && column && $column != "-" { gsub(",", " ", $column); print $column }'
}

# Prints the command that installs packages, for a shell. Debian's package starts a server on the
# port that `make run` uses, so the command stops that service.
install_command() {
  case $manager in
    apt-get)
      stop=
      case " $* " in *' redis-server '*) stop=' && { service redis-server stop; systemctl disable redis-server; true; } >/dev/null 2>&1' ;; esac
      echo "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends $*$stop" ;;
    dnf) echo "dnf install -y $*" ;;
    apk) echo "apk add --update-cache $*" ;;
    pacman) echo "pacman -Sy --noconfirm --needed $*" ;;
    brew) echo "brew install $*" ;;
  esac
}

may_be_root() { [ "$manager" = brew ] || [ "$(id -u)" = 0 ] || have sudo; }

install() {
  command=$(install_command "$@")
  if may_be_root; then
    say "installing $* with $manager"
    case $manager:$(id -u) in brew:* | *:0) sudo= ;; *) sudo=sudo ;; esac
    $sudo sh -c "$command" >&2 && return
  fi
  say "run this as root, then try again:"
  printf '%s\n' "$command" >&2
  return 1
}

advice() {
  case $1 in
    compiler) echo "a C compiler that answers to cc (macOS: xcode-select --install)" ;;
    libclang) echo "libclang (Debian: libclang-dev), or set LIBCLANG_PATH${LIBCLANG_PATH:+, which is $LIBCLANG_PATH}" ;;
    server) echo "Redis >= 7.0 or Valkey >= 8.0 with its client, or set REDIS_SERVER${REDIS_SERVER:+, which is $REDIS_SERVER}" ;;
    deb) echo "dpkg-shlibdeps (Debian: dpkg-dev) and xz (Debian: xz-utils)" ;;
    pip) echo "pip for Python 3 (Debian: python3-pip)" ;;
    musl) echo "musl-gcc (Debian: musl-tools)" ;;
    venv) echo "Python's venv (Debian: python3-venv)" ;;
    maven) echo "Maven and a JDK (Debian: maven default-jdk-headless)" ;;
    *) echo "$1" ;;
  esac
}

# Dependencies that are installed too if something is, or if it needs nobody else.
optional=

# Installs the packages of the missing dependencies, and fails if one is missing afterwards. No package
# helps if a path is set to something else.
need() {
  wanted=
  for name in "$@"; do
    "find_$name" >/dev/null 2>&1 && continue
    case $name:${LIBCLANG_PATH:-}:${REDIS_SERVER:-} in
      libclang:?*:* | server:*:?*) found= ;;
      *) found=$(packages_of "$name") ;;
    esac
    [ -n "$found" ] || die "install $(advice "$name")"
    wanted="$wanted $found"
  done
  if [ -n "$wanted" ] || { [ -n "$optional" ] && may_be_root; }; then
    # shellcheck disable=SC2086  # a list of words
    install $wanted $optional || [ -z "$wanted" ] || exit 1
  fi
  for name in "$@"; do "find_$name" >/dev/null 2>&1 || die "install $(advice "$name")"; done
}

need_cargo() {
  have cargo || die "install Rust (https://rustup.rs) and open a new shell: cargo is not in PATH"
  wanted=$(sed -n 's/^rust-version *= *"1\.\([0-9]*\).*/\1/p' "$root/Cargo.toml")
  said=$(cargo --version 2>&1)
  found=$(echo "$said" | sed -n 's/^cargo 1\.\([0-9][0-9]*\).*/\1/p')
  [ -n "$found" ] ||
    die "$(command -v cargo) doesn't work, 'cargo --version' says '$(echo "${said:-nothing}" | head -n 1)': try rustup default stable"
  [ "$found" -ge "$wanted" ] || die "this project needs Rust 1.$wanted, here is 1.$found: rustup update"
}

need_to_test() {
  need_cargo
  # Debian's pip takes some seconds, and to build cargo-nextest takes minutes.
  find_nextest || find_pip >/dev/null 2>&1 || optional="$optional $(packages_of pip)"
  need compiler libclang server
  find_nextest || sh "$root/scripts/prebuilt.sh" cargo-nextest && return
  # If there is no build of it for this system: a version that the oldest supported Rust compiles.
  say "building cargo-nextest, which takes two minutes, once"
  (
    unset CARGO_TARGET_DIR
    cargo install --debug --locked --version 0.9.114 --no-default-features --features default-no-update cargo-nextest >&2
  )
  find_nextest || die "install cargo-nextest (https://nexte.st), which runs the tests"
}

case ${1:-} in
  env) print_env ;;
  build) need_cargo; need compiler libclang ;;
  run) need_cargo; need compiler libclang server ;;
  test) need_to_test ;;
  deb) need_cargo; need compiler libclang server deb pip ;;
  musl) need musl ;;
  release) need git venv npm maven go composer ;;
  '')
    have valgrind || optional=$(packages_of valgrind)
    need_to_test
    have valgrind || say "without valgrind, make memcheck and make instructions don't run" ;;
  *) die "usage: deps.sh [build | run | test | deb | musl | release | env]" ;;
esac
