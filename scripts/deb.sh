#!/bin/sh
# deb.sh   makes the Debian package of what was built, and prints its path. Refuses a package that
#          does not depend on libc6: cargo-deb leaves that out if it cannot ask dpkg.
set -eu

cd "$(dirname "$0")/.."
sh scripts/package-docs.sh "${CARGO_TARGET_DIR:-target}/release/package-docs"
deb=$(cargo deb --no-build --quiet)
case ", $(dpkg-deb --field "$deb" Depends)" in
  *', libc6 ('*) echo "$deb" ;;
  *)
    rm -f "$deb"
    echo "deb: the package would not depend on libc6: dpkg-shlibdeps found no package of the C library" >&2
    exit 1
    ;;
esac
