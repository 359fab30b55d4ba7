#!/bin/sh
# install.sh FOLDER    installs the libraries that `make bench-peers` measures in FOLDER, unless
#                      they are up to date: python/ is a virtual environment, node/ has
#                      node_modules, go/ has the drivers, java/ has a folder for each JVM's classes.
#                      This project's clients are built from their sources.
set -eu

folder=$1
peers=$(cd "$(dirname "$0")" && pwd)
clients=$peers/../../clients

say() { echo "bench-peers: $*" >&2; }
for program in python3 node npm go javac mvn; do
  command -v "$program" >/dev/null || { say "$program is not in PATH"; exit 1; }
done

mkdir -p "$folder/node" "$folder/go" "$folder/java"
folder=$(cd "$folder" && pwd)

if ! cmp -s "$peers/requirements.txt" "$folder/python/requirements.txt"; then
  say "installing the Python libraries in $folder/python"
  python3 -m venv "$folder/python"
  "$folder/python/bin/pip" install --quiet --disable-pip-version-check -r "$peers/requirements.txt"
  cp "$peers/requirements.txt" "$folder/python/"
fi

"$clients/node/setup"
if ! cmp -s "$peers/package.json" "$folder/node/installed.json" ||
  [ -n "$(find "$clients/node/dist" -newer "$folder/node/installed.json")" ]; then
  say "installing the Node libraries in $folder/node"
  cp "$peers/package.json" "$folder/node/"
  (
    cd "$folder/node"
    client=$(npm pack --silent "$clients/node")
    npm install --silent --no-audit --no-fund --no-package-lock
    npm install --silent --no-audit --no-fund --no-package-lock --no-save "./$client"
  )
  cp "$peers/package.json" "$folder/node/installed.json"
fi

(cd "$peers/go" && go build -o "$folder/go/peers" .)

# Copies the libraries of a project into a folder.
copy() {
  mvn --quiet --batch-mode -f "$1" dependency:copy-dependencies -DoutputDirectory="$2"
}

for libraries in redisson spring; do
  if ! cmp -s "$peers/java/$libraries.xml" "$folder/java/$libraries/installed.xml"; then
    say "installing the Java libraries in $folder/java/$libraries"
    rm -rf "$folder/java/$libraries"
    cp "$peers/java/$libraries.xml" "$folder/java/"
    copy "$folder/java/$libraries.xml" "$folder/java/$libraries"
    mv "$folder/java/$libraries.xml" "$folder/java/$libraries/installed.xml"
  fi
done
if ! cmp -s "$clients/java/pom.xml" "$folder/java/redis-lock/installed.xml"; then
  rm -rf "$folder/java/redis-lock"
  copy "$clients/java/pom.xml" "$folder/java/redis-lock"
  cp "$clients/java/pom.xml" "$folder/java/redis-lock/installed.xml"
fi
mkdir -p "$folder/java/redis-lock/client"
find "$clients/java/src/main/java" -name '*.java' \
  -exec javac -nowarn --release 17 -cp "$folder/java/redis-lock/*" -d "$folder/java/redis-lock/client" {} +

# Compiles a driver against the libraries in a folder.
compile() {
  javac -d "$folder/java/$1/classes" -cp "$folder/java/$1/client:$folder/java/$1/*" \
    "$peers/java/Contenders.java" "$peers/java/$2.java"
}

compile redisson RedissonLocks
compile spring SpringLocks
compile redis-lock OurLocks
