# planted-rows.sh   is sourced by planted.sh, planted-module.sh and planted-clients.sh: it plants patches
#                   in a copy of HEAD, one at a time, and prints which tests catch each.
#
# The script that sources it sets folder, the directory of the copy and of the tests' output, and
# defines three functions: built makes what the copy's tests need, tests plays them, and caught_by NAME
# prints which failed, by the output in NAME.log. The variable planted has the names of the patches that
# they are for: one, or all of them before the first is planted.
# shellcheck shell=bash disable=SC2154,SC2034

copy=$folder/copy

# fresh_copy: makes a copy of HEAD. Its files are new, so cargo builds them.
fresh_copy() {
  rm -rf "$copy"
  mkdir "$copy"
  git archive HEAD | tar -xmf - -C "$copy"
}

# apply [OPTION] PATCH: changes files of the copy. They are new then, so they are built again.
apply() { GIT_CEILING_DIRECTORIES=$folder git -C "$copy" apply "$@"; }

# play NAME [PATCH]: runs the tests in the copy with a patch. Prints their status and seconds.
play() {
  local log=$folder/$1.log began=$SECONDS status=passed
  if [ -n "${2:-}" ] && ! apply "$2" 2>"$log"; then
    printf "doesn't apply\t0\n"
    return
  fi
  if ! built >"$log" 2>&1; then
    status="doesn't compile"
  else
    began=$SECONDS
    tests >>"$log" 2>&1 || status=failed
  fi
  [ -z "${2:-}" ] || apply --reverse "$2"
  printf '%s\t%d\n' "$status" $((SECONDS - began))
}

# tests_of PATCH: prints the tests that the second line of a patch names.
tests_of() { sed -n '2s/^tests: //p' "$1"; }

row() { printf '%-42s %5s s  %s\n' "$1" "$2" "$3"; }

# play_all PATCHES [NAME...]: plays without a patch, and then these patches of the directory PATCHES, by
# default all. Returns 1 if a patch isn't caught, doesn't apply or doesn't compile.
play_all() {
  local patches=$1 failed=0 status seconds name caught names planted
  shift
  [ "$#" != 0 ] || set -- "$patches"/*.patch
  names=$(for name in "$@"; do basename "$name" .patch; done)
  fresh_copy
  planted=$names
  IFS=$'\t' read -r status seconds < <(play without)
  row '(no patch)' "$seconds" "$status"
  if [ "$status" != passed ]; then
    echo "the tests must pass without a patch: $folder/without.log" >&2
    return 1
  fi
  for name in $names; do
    planted=$name
    IFS=$'\t' read -r status seconds < <(play "$name" "$PWD/$patches/$name.patch")
    caught=
    case $status in
      passed) status='NOT CAUGHT' ;;
      failed) caught=$(caught_by "$name") status=${caught:-"NO TEST FAILED: $folder/$name.log"} ;;
      *) status="$status: $folder/$name.log" ;;
    esac
    [ -n "$caught" ] || failed=1
    row "$name" "$seconds" "$status"
  done
  rm -rf "$copy"
  return "$failed"
}
