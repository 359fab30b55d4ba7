#!/bin/sh
# portable.sh COMMAND TARGET ARGUMENT...   runs `cargo COMMAND --target TARGET ARGUMENT...`, a build or
#                                          test, for a target with glibc. The results run with
#                                          glibc 2.28 and later, whichever this machine has.
#
# cargo-zigbuild lets Zig link, which knows the symbols of each version of glibc. Zig's own unwinder
# stands in for libgcc_s. pip gets both from PyPI once, into cargo's build directory.
set -eu

# Not in the clone's root: Zig names its own headers relative to a directory above them, and build
# scripts, which run elsewhere, then miss them.
cd "$(dirname "$0")"
glibc=2.28
cargo_zigbuild=0.24.1
ziglang=0.17.1
clone=$(cd .. && pwd)
build=${CARGO_TARGET_DIR:-$clone/target}
zig=$build/zig/$cargo_zigbuild-$ziglang
command=$1
target=$2
shift 2

# The hashes are of the builds for Linux, x86_64 and ARM64 each.
install_zig() {
  python3 -m pip --version >/dev/null 2>&1 || { echo "portable: no pip for Python 3 (Debian: python3-pip)" >&2; exit 1; }
  rm -rf "$zig.part"
  mkdir -p "$zig.part"
  cat >"$zig.part/wanted" <<END
cargo-zigbuild==$cargo_zigbuild \\
  --hash=sha256:238a1ab54a95053a4eadc34775c81f795a8ad75f80bfed63f3f445f518102375 \\
  --hash=sha256:07c5e3dcddf208500462ec927c556bb306cca2b533b0abe29446bffb63767b85
ziglang==$ziglang \\
  --hash=sha256:ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54 \\
  --hash=sha256:b7c5f02fccd40f89b999ee16a1f5ddced56e6182370f8affe494bcf8a28cf07e
END
  python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --require-hashes --target "$zig.part" --requirement "$zig.part/wanted" >&2
  mv "$zig.part" "$zig"
}

[ -d "$zig" ] || install_zig
# The names of source files in panics, which are then the same wherever the clone and cargo's home are.
RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$clone=/redis-lock --remap-path-prefix=$build=/build"
export RUSTFLAGS="$RUSTFLAGS --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
export CARGO_ZIGBUILD_ZIG_PATH="$zig/ziglang/zig"
exec "$zig/bin/cargo-zigbuild" "$command" --target "$target.$glibc" "$@"
