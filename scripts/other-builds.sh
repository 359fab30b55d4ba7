#!/bin/sh
# other-builds.sh REV   builds two other versions of the module, for tests/upgrade.rs: that of the
#                       commit REV, and one of this clone's sources that stores and replicates in a
#                       form that doesn't exist yet. Prints their paths, in the form of shell
#                       exports.
set -eu

cd "$(dirname "$0")/.."
folder=${CARGO_TARGET_DIR:-$PWD/target}/upgrade
# Both versions are built in one directory, so that their dependencies are built once.
tree=$folder/tree

say() { echo "other-builds: $*" >&2; }

begin_tree() { rm -rf "$tree"; mkdir -p "$tree"; }

# Touches the sources, because cargo compares the times of files, and those of a commit are old.
build() {
  find "$tree" -name '*.rs' -exec touch {} +
  (cd "$tree" && cargo build --quiet --lib --target-dir "$folder/build") >&2
  cp "$folder/build/debug/libredis_lock.so" "$folder/$1.so"
}

copy_sources() {
  git ls-files -z --cached --others --exclude-standard | xargs -0 tar -cf - | tar -xf - -C "$tree"
}

# Replaces text like sed, but fails if the file lacks the text.
change() {
  grep -q "$2" "$tree/$1" || { say "$1 has no $2"; exit 1; }
  sed -i "s/$2/$3/" "$tree/$1"
}

begin_tree
if git cat-file -e "$1^{commit}" 2>/dev/null; then
  git archive "$1" | tar -xf - -C "$tree"
else
  say "this clone has no commit $1, being shallow: its own sources stand in for it"
  copy_sources
fi
build old

begin_tree
copy_sources
change core/src/values/codec.rs 'ENCODING_VERSION: i32 = 1' 'ENCODING_VERSION: i32 = 3'
change core/src/effect.rs 'b"GRANT"' 'b"GIVE"'
build next

printf "export REDIS_LOCK_OLD_MODULE='%s'\n" "$folder/old.so"
printf "export REDIS_LOCK_NEXT_MODULE='%s'\n" "$folder/next.so"
