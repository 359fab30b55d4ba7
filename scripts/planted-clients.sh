#!/usr/bin/env bash
# planted-clients.sh [PATCH...]   plants each bug of tests/planted/clients in a client library of a copy
#                                 of HEAD, and plays the row of the conformance table that catches it. A
#                                 PATCH is one of these files; by default all
#
# 1. The name of a patch begins with the folder of its library. Its second line has the client and the
#    row: `go: a_late_extension`. A row of a cluster has that word after the client: `go cluster: ROW`.
#    `tests: COMMAND` is one of the library's own tests instead, which runs in the folder of the library.
# 2. The copy and its builds are in the directory planted-clients of cargo's build directory. The output
#    of the rows stays there.
# 3. The conformance suite and the module are those of this tree.
# 4. All rows are played without a patch first. If one fails, the others would show nothing.
# 5. Fails if a patch isn't caught, doesn't apply or doesn't compile.
set -euo pipefail
cd "$(dirname "$0")/.."

build=${CARGO_TARGET_DIR:-target}
mkdir -p "$build/planted-clients"
folder=$(cd "$build/planted-clients" && pwd)
suite=$(cd "$build/tool" && pwd)
export CARGO_TARGET_DIR=$folder/target REDIS_LOCK_RIG=$suite/rig

# built: sets up the libraries of the planted patches.
built() {
  local library
  for library in $(sed 's/_.*//' <<<"$planted" | sort -u); do
    "$copy/clients/$library/setup" || return 1
  done
}

# tests: plays the rows of the planted patches.
tests() {
  local name status=0
  for name in $planted; do
    catcher "$name" "$(sed -n 2p "tests/planted/clients/$name.patch")" || status=1
  done
  return "$status"
}

# catcher NAME LINE: plays the row or the test of a patch.
catcher() {
  local client kind
  case $2 in
    'tests: '*) (cd "$copy/clients/${1%%_*}" && eval "${2#tests: }") ;;
    *)
      read -r client kind <<<"${2%%: *}"
      "$suite/conformance" --folder "$copy/clients" --no-setup --client "$client" --kind "${kind:-standalone}" \
        --part rows --test-threads 4 "${2#*: }"
      ;;
  esac
}

# caught_by NAME: prints the rows that failed.
caught_by() {
  sed -n 's/^test \(.*[^ ]\) *\.\.\. FAILED$/\1/p; s/^FAILED \([^ ]*\).*/\1/p' "$folder/$1.log" |
    sort -u | paste -s -d ,
}

. scripts/planted-rows.sh
play_all tests/planted/clients "$@"
