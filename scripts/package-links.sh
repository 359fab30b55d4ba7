#!/bin/sh
# package-links.sh URL <CARRIED   changes the Markdown pages in this folder and below it: a relative link
#                                 to a path that isn't in the list CARRIED becomes one below URL.
set -eu

carried=$(cat)
awk=$(cd "$(dirname "$0")" && pwd)/package-links.awk
find . -name '*.md' | sed 's,^\./,,' | while read -r page; do
  echo "$carried" | awk -v page="$page" -v url="$1" -f "$awk" - "$page" >"$page.new"
  mv "$page.new" "$page"
done
