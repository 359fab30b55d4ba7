#!/bin/sh
# package-docs.sh FOLDER   copies the documents that packages carry into FOLDER. A relative link to a
#                          file that packages don't carry becomes a link to the repository, at the
#                          tag of this version.
set -eu

cd "$(dirname "$0")/.."
rm -rf "$1"
mkdir -p "$1"
folder=$(cd "$1" && pwd)
repository=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

cp README.md CHANGELOG.md SECURITY.md LICENSE LICENSE-APACHE LICENSE-MIT redis.conf.example "$folder/"
find docs monitoring -type f | while read -r file; do
  mkdir -p "$folder/$(dirname "$file")"
  cp "$file" "$folder/$file"
done

links=$PWD/scripts/package-links.sh
cd "$folder"
find . | sh "$links" "$repository/blob/v$version"
