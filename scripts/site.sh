#!/bin/sh
# site.sh [CLONE [SITE]]
#
# Builds the site of the Markdown in CLONE, by default this clone's, as SITE, by default target/site.
# Both paths are absolute. The book that mdBook reads is a copy of the pages and pictures beside the
# site, in SITE-book. In it, a link to another file of the clone leads to the repository. The first
# call builds mdBook and fetches Mermaid from npm. A reader of the site needs no network.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
clone=${1:-$root}
site=${2:-$target/site}
parts=$root/scripts/pages/site
mdbook=$target/tools/bin/mdbook

say() { echo "site: $*" >&2; }
die() { say "$*"; exit 1; }

# Builds mdBook once, in a version that the oldest supported Rust compiles.
need_mdbook() {
  version=0.5.4
  [ "$("$mdbook" --version 2>/dev/null)" != "mdbook v$version" ] || return 0
  say "building mdbook, which takes a minute, once"
  (
    unset CARGO_TARGET_DIR
    cargo install --debug --locked --version "$version" --no-default-features --features search \
      --root "$target/tools" mdbook >&2
  )
}

# Fetches the packages of package-lock.json, whose contents npm checks.
need_packages() {
  [ ! "$parts/node_modules/.package-lock.json" -nt "$parts/package-lock.json" ] || return 0
  command -v npm >/dev/null || die "install npm (Debian: npm), which fetches Mermaid"
  npm --prefix "$parts" ci --ignore-scripts --no-audit --no-fund --loglevel error >&2
  touch "$parts/node_modules/.package-lock.json"
}

need_mdbook
need_packages
book=$site-book
repository=$(sed -n 's/^git-repository-url = "\(.*\)"/\1/p' "$parts/book.toml")
rm -rf "$book"
mkdir -p "$book/src"
cp "$parts/book.toml" "$parts/site.css" "$parts/diagrams.js" "$parts/tables.js" "$book"

cd "$clone"
{
  find ./*.md docs -name '*.md' -o -name '*.svg'
  find clients examples -maxdepth 3 -name README.md
} 2>/dev/null | tar -cf - -T - | tar -xf - -C "$book/src"
cd "$book/src"
# A badge would be fetched from elsewhere.
find . -name README.md -exec sed -i '/badge\.svg/d' {} +
find . -type f | sh "$root/scripts/package-links.sh" "$repository/blob/main"
cp "$clone"/scripts/pages/site/*.md "$parts/node_modules/@mermaid-js/tiny/dist/mermaid.tiny.js" .
"$mdbook" build "$book" --dest-dir "$site"

node "$parts/descriptions.mjs" "$site"

# For those who read by machine: the list of all pages, and all commands on one page.
{
  printf '# redis-lock\n\n> %s\n\n' "$(sed -n '3,/^$/s/./&/p' README.md | paste -s -d ' ' -)"
  printf -- '- [All commands on one page](commands.txt)\n'
  sed '1d; s/\.md)/.html)/' SUMMARY.md
} >"$site/llms.txt"
find docs -path "docs/commands*" -name "*.md" | sort | xargs cat >"$site/commands.txt"
