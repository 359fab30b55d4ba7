#!/bin/sh
# prometheus.sh   finds Prometheus's exporter for Redis and promtool, or extracts them from Debian's
#                 packages. It does not install these packages, because they would start services.
#                 Prints the paths of both programs, in the form of shell exports.
set -eu

folder=${CARGO_TARGET_DIR:-target}/prometheus

say() { echo "prometheus: $*" >&2; }

unpack() {
  mkdir -p "$folder"
  (cd "$folder" && apt-get -qq download "$1" >&2 && dpkg-deb -x "$1"_*.deb . && rm "$1"_*.deb)
}

# Prints the path of the first of these programs in PATH, or else of the first program in a package.
# The first word names the package.
find_program() {
  package=$1
  shift
  for name in "$@"; do command -v "$name" && return; done
  [ -x "$folder/usr/bin/$1" ] || unpack "$package" || {
    say "no $1 in PATH, and no package of Debian's to take it from"
    exit 1
  }
  echo "$folder/usr/bin/$1"
}

exporter=${PROMETHEUS_REDIS_EXPORTER:-$(find_program prometheus-redis-exporter prometheus-redis-exporter redis_exporter)}
promtool=${PROMTOOL:-$(find_program prometheus promtool)}
printf "export PROMETHEUS_REDIS_EXPORTER='%s' PROMTOOL='%s'\n" "$exporter" "$promtool"
