# Finds Go for `setup` and `test`, and installs Debian's if there is none.
built=${CARGO_TARGET_DIR:-$here/../../target}/clients/go
oldest=$(sed -n 's/^go 1\.\([0-9]*\).*/\1/p' "$here/go.mod")

# is_new GO: succeeds if this program is a Go that go.mod admits.
is_new() {
  minor=$("$1" env GOVERSION 2>/dev/null | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
  [ "${minor:-0}" -ge "$oldest" ]
}

# find_go: puts a Go into PATH.
find_go() {
  for program in "$(command -v go)" /usr/local/go/bin/go /usr/lib/go-1.*/bin/go; do
    if [ -x "$program" ] && is_new "$program"; then
      PATH=$(dirname "$program"):$PATH
      return
    fi
  done
  return 1
}

if ! find_go; then
  apt-get install --yes --quiet golang-go >&2 || true
  find_go || { echo "the Go library needs Go 1.$oldest or later: https://go.dev/dl/" >&2; exit 1; }
fi
export GOTOOLCHAIN=local GOFLAGS="${GOFLAGS:-} -buildvcs=false"
