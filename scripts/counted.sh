#!/bin/sh
# counted.sh RUSTC ARGUMENT...   compiles a crate, as cargo's RUSTC_WRAPPER. The core and the targets of
#                                bytes get counters of the edges that a run reaches, and the flags of
#                                COUNTED. The target `table` doesn't, and no other crate: counters of
#                                the judge took most of a walk's time
set -eu
for crate in redis_lock_core commands stored apply; do
  case " $* " in
    *" --crate-name $crate "*)
      # shellcheck disable=SC2086 # a list of flags
      exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table ${COUNTED:-}
      ;;
  esac
done
exec "$@"
