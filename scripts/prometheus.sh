#!/bin/sh
# prometheus.sh   finds Prometheus's exporter for Redis and promtool, or takes them out of Debian's packages
#                 without installing these: installed, they would start services. Prints where they lie, as
#                 shell exports.
set -eu

folder=${CARGO_TARGET_DIR:-target}/prometheus

say() { echo "prometheus: $*" >&2; }

unpack() {
  mkdir -p "$folder"
  (cd "$folder" && apt-get -qq download "$1" >&2 && dpkg-deb -x "$1"_*.deb . && rm "$1"_*.deb)
}

# The first of these programs that is there, from PATH or from the package that the first word names.
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
