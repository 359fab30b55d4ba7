#!/bin/sh
# install.sh FOLDER    installs the libraries that `make bench-peers` measures in FOLDER, unless
#                      they are up to date: python/ is a virtual environment, node/ has
#                      node_modules
set -eu

folder=$1
peers=$(cd "$(dirname "$0")" && pwd)

say() { echo "bench-peers: $*" >&2; }
for program in python3 node npm; do
  command -v "$program" >/dev/null || { say "$program is not in PATH"; exit 1; }
done

mkdir -p "$folder/node"
if ! cmp -s "$peers/requirements.txt" "$folder/python/requirements.txt"; then
  say "installing the Python libraries in $folder/python"
  python3 -m venv "$folder/python"
  "$folder/python/bin/pip" install --quiet --disable-pip-version-check -r "$peers/requirements.txt"
  cp "$peers/requirements.txt" "$folder/python/"
fi
if ! cmp -s "$peers/package.json" "$folder/node/installed.json"; then
  say "installing the Node libraries in $folder/node"
  cp "$peers/package.json" "$folder/node/"
  (cd "$folder/node" && npm install --silent --no-audit --no-fund --no-package-lock)
  cp "$peers/package.json" "$folder/node/installed.json"
fi
