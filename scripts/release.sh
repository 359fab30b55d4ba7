#!/bin/sh
# release.sh files TAG    gathers the package, the tarballs and the bills of materials of this machine
#                         in release-files, inside cargo's build directory. TAG must be v and the
#                         version. `make deb dist` comes before.
# release.sh checksums    writes the SHA-256 of all files there to SHA256SUMS
set -eu

cd "$(dirname "$0")/.."
build=${CARGO_TARGET_DIR:-target}
files=$build/release-files
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

die() { echo "release: $*" >&2; exit 1; }

# Moves the CycloneDX bill of materials of the crate in a folder, which cargo-cyclonedx writes there.
# It writes one for each member of the workspace.
bill_of_materials() {
  mv "$1/bill.json" "$files/$2-$version.cdx.json"
}

case ${1:-} in
  files)
    [ "${2:-}" = "v$version" ] || die "the tag of this version is v$version, not '${2:-}'"
    rm -rf "$files"
    mkdir -p "$files"
    cp "$build"/debian/redis-lock_"$version"-*.deb "$build"/dist/redis-lock*-"$version"-*.tar.gz "$files/"
    # For all targets, so that each machine of a release writes the same.
    cargo cyclonedx --format json --target all --override-filename bill --quiet
    bill_of_materials . redis-lock
    bill_of_materials cli redis-lock-cli
    find . -name bill.json -not -path './target/*' -exec rm {} +
    sh "$0" checksums
    ;;
  checksums)
    cd "$files"
    rm -f SHA256SUMS
    sha256sum -- * >../SHA256SUMS
    mv ../SHA256SUMS SHA256SUMS
    cat SHA256SUMS
    ;;
  *) die "usage: release.sh files TAG | checksums" ;;
esac
