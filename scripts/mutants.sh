#!/bin/sh
# mutants.sh core [OPTION...]    plays the core's own tests with every mutant of core/ that cargo-mutants
#                                lists, by the program of tests/mutants. `--help` lists its OPTIONs.
# mutants.sh shell [OPTION...]   plays server tests with the mutants of src/
#
# Everything is in the directory mutants of cargo's build directory, or in mutants-shell. A later run
# builds less.
set -eu
cd "$(dirname "$0")/.."

version=27.1.0
case ${1:?core or shell} in
  core) package=redis-lock-core name=mutants explained=explained.txt ;;
  shell) package=redis-lock name=mutants-shell explained=explained-shell.txt ;;
esac
of=$1
shift
folder=${CARGO_TARGET_DIR:-target}/$name
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

if ! [ "$(cargo mutants --version 2>/dev/null)" = "cargo-mutants $version" ]; then
  echo "building cargo-mutants, which takes some minutes, once" >&2
  (unset CARGO_TARGET_DIR; CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --debug --locked --version "$version" cargo-mutants)
fi
cargo mutants --list --json --package "$package" >"$folder/list.json"
# Most mutants are caught by the first random cases.
PROPTEST_CASES=${PROPTEST_CASES:-16} cargo run --quiet --package redis-lock-mutants -- \
  "$folder/list.json" --of "$of" --folder "$folder" --explained "tests/mutants/$explained" "$@"
