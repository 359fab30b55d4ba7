#!/bin/sh
# release.sh TAG        builds all that the tag publishes, in release-files inside cargo's build
#                       directory, and prints it. Publishes nothing.
# release.sh sums TAG   writes the provenance and SHA256SUMS of the files there
#
# Clones HEAD to release-tree, and writes the tag's version into the clone's files, so the work tree
# keeps its own. The clone's commit is what a release tags: it depends on HEAD and TAG alone.
#
# TARGETS names further targets of rustc for `make dist`: by default arm64, if rustc has its standard
# library. LIBRARIES names the client libraries.
set -eu

cd "$(dirname "$0")/.."
build=${CARGO_TARGET_DIR:-$PWD/target}
tree=$build/release-tree
files=$build/release-files
host=$(rustc -vV | sed -n 's/^host: //p')
repository=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)
has=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

say() { echo "release: $*" >&2; }
die() { say "$*"; exit 1; }

# --- versions ------------------------------------------------------------------------------------

# Files that registries read a version from.
manifests="Cargo.toml Cargo.lock clients/java/pom.xml clients/java/spring/pom.xml clients/node/package.json
  clients/node/package-lock.json clients/php/composer.json clients/php/laravel/composer.json
  clients/php/symfony/composer.json clients/python/src/redislock/__init__.py"

# Refuses a tag that isn't this version, the next patch, minor or major one, or -rc1 to -rc9 of
# these. SemVer sorts -rc10 before -rc9.
check_tag() {
  printf '%s\n' "$1" | grep -qE '^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-rc[1-9])?$' ||
    die "TAG='$1' is no tag of a version: v1.2.3 or v1.2.3-rc1"
  IFS=. read -r major minor patch <<END
${has%-rc*}
END
  for fits in "$major.$minor.$patch" "$major.$minor.$((patch + 1))" "$major.$((minor + 1)).0" "$((major + 1)).0.0"; do
    case $1 in "v$fits" | "v$fits"-rc?) return ;; esac
  done
  die "the version here is $has, so its tag or the next one can't be $1"
}

# Makes the clone, with this version. Its commit has a fixed author, and HEAD's time.
make_tree() {
  rm -rf "$tree"
  git clone --quiet --no-checkout --no-tags . "$tree"
  git -C "$tree" checkout --quiet --detach "$commit"
  cd "$tree"
  for file in $manifests; do grep -qF "\"$has\"
>$has<" "$file" || die "$file doesn't have version $has, which Cargo.toml has"; done
  if [ "$version" != "$has" ]; then
    old=$(echo "$has" | sed 's/\./\\./g')
    sed -i "/^name = \"redis-lock/{n;s/\"$old\"/\"$version\"/}" Cargo.lock
    sed -i "1,12s/\"version\": \"$old\"/\"version\": \"$version\"/" clients/node/package-lock.json
    sed -i "s/\"$old\"/\"$python\"/" clients/python/src/redislock/__init__.py
    # shellcheck disable=SC2046 # a list of words
    sed -i "s/^version = \"$old\"/version = \"$version\"/; s/\"version\": \"$old\"/\"version\": \"$version\"/
      /redis-lock/s/$old/$version/g; /<artifactId>redis-lock-/{n;s/>$old</>$version</}" \
      $(git grep -lF "$has" -- Cargo.toml 'clients/*.json' 'clients/*.xml' 'clients/*.md' 'examples/*.xml' \
        docs/operate/install.md docs/operate/deploy.md ':!*lock.json')
    time=$(git log -1 --format=%cI)
    GIT_AUTHOR_DATE=$time GIT_COMMITTER_DATE=$time git -c user.name=redis-lock -c user.email= \
      commit --quiet --all --message "Stamp version $version"
  fi
  git tag --force "$tag" >/dev/null
  git tag --force "clients/go/$tag" >/dev/null
}

# --- what a server runs --------------------------------------------------------------------------

# Installs a cargo subcommand once if it is missing.
need_subcommand() {
  cargo "${1#cargo-}" --version >/dev/null 2>&1 ||
    (unset CARGO_TARGET_DIR; CARGO_PROFILE_DEV_DEBUG=0 cargo install --debug --locked --version "$2" "$1")
}

# Prints the target if rustc has a standard library for it, and it isn't this machine's.
installed() { [ "$1" = "$host" ] || [ ! -d "$(rustc --print sysroot)/lib/rustlib/$1/lib" ] || echo "$1"; }

make_packages() {
  make deb dist
  for target in ${TARGETS:-$(installed aarch64-unknown-linux-gnu)}; do make dist TARGET="$target"; done
  cargo generate-rpm --auto-req disabled --target-dir "$CARGO_TARGET_DIR" --output "$out/" \
    --set-metadata "version = \"$distribution\""
  cp "$CARGO_TARGET_DIR"/debian/redis-lock_"$distribution"-*.deb "$CARGO_TARGET_DIR"/dist/redis-lock*-"$version"-*.tar.gz "$out/"
  # A second build needs it to make the same module.
  profile=$CARGO_TARGET_DIR/profiles/merged.profdata
  [ ! -e "$profile" ] || cp "$profile" "$out/redis-lock-$version-$host.profdata"
}

# cargo-cyclonedx writes one bill for each member of the workspace. For all targets, so that each
# machine of a release writes the same.
make_bills() {
  cargo cyclonedx --format json --target all --override-filename bill --quiet
  # Without the path of this clone.
  sed "s,file://$tree,file:///redis-lock,g" bill.json >"$out/redis-lock-$version.cdx.json"
  sed "s,file://$tree,file:///redis-lock,g" cli/bill.json >"$out/redis-lock-cli-$version.cdx.json"
  find . -name bill.json -exec rm {} +
}

# --- libraries -----------------------------------------------------------------------------------

pack_python() {
  venv=$build/release-venv
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check build==1.6.1 twine==7.0.0
  "$venv/bin/python" -m build --outdir "$out" clients/python
  "$venv/bin/twine" check --strict "$out/redis_lock_client-$python.tar.gz" "$out/redis_lock_client-$python-py3-none-any.whl"
}

pack_node() {
  case $version in *-*) channel=next ;; *) channel=latest ;; esac
  npm pack --silent --pack-destination "$out" ./clients/node
  npm publish --dry-run --access public --tag "$channel" "$out/redis-lock-client-$version.tgz"
}

# `cargo package` builds what it packed, and keeps it.
pack_rust() {
  cargo package --locked --package redis-lock-client
  cargo publish --locked --dry-run --no-verify --package redis-lock-client
  cp "$CARGO_TARGET_DIR/package/redis-lock-client-$version.crate" "$out/"
}

# The tests run in stage `suites`. Maven makes the layout of Central's bundle, with MD5 and SHA-1.
pack_java() {
  bundle=$build/release-maven
  rm -rf "$bundle"
  for pom in clients/java clients/java/spring; do
    mvn --quiet --batch-mode -Dstyle.color=never --file "$pom" -Prelease -DskipTests "-DaltDeploymentRepository=bundle::file://$bundle" \
      "-Dproject.build.outputTimestamp=$SOURCE_DATE_EPOCH" \
      clean install org.apache.maven.plugins:maven-deploy-plugin:3.1.4:deploy
  done
  find "$bundle" -name 'maven-metadata*' -exec rm {} +
  for artifact in redis-lock-client redis-lock-spring-boot-starter; do
    check_central "$bundle/io/github/redis-lock/$artifact/$version/$artifact-$version"
  done
  jar --create --no-manifest --date="$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)" \
    --file "$out/redis-lock-java-$version.zip" -C "$bundle" io
}

# Central wants these of each artifact, and a signature, which is a person's.
check_central() {
  for end in .pom .jar -sources.jar -javadoc.jar; do
    for sum in '' .md5 .sha1; do [ -s "$1$end$sum" ] || die "Central wants $1$end$sum"; done
  done
  for element in name description url licenses developers scm; do
    grep -q "^  <$element>" "$1.pom" || die "Central wants <$element> in $1.pom"
  done
}

# The go command makes the module's zip, like proxy.golang.org. It gets the clone instead of the
# repository.
pack_go() {
  here=$tree/clients/go
  . "$here/go.sh"
  module=$(sed -n 's/^module //p' clients/go/go.mod)
  (
    cd "$(mktemp -d)"
    GOMODCACHE=$build/release-go GOFLAGS=-modcacherw GOPROXY=direct GOSUMDB=off GIT_CONFIG_COUNT=1 \
      GIT_CONFIG_KEY_0="url.file://$tree.insteadOf" GIT_CONFIG_VALUE_0=$repository \
      go mod download "$module@$tag"
  )
  made=$build/release-go/cache/download/$module/@v/$tag
  for end in info mod zip; do cp "$made.$end" "$out/redis-lock-go-$version.$end"; done
}

pack_php() {
  for package in client laravel symfony; do
    folder=$build/release-php/$package
    rm -rf "$folder"
    mkdir -p "$folder"
    # With the licences instead of the links to them, which Composer leaves out.
    cp -RL "clients/php/${package#client}/." "$folder"
    # The READMEs' repositories of type `path` need the field `version`.
    composer validate --no-interaction --strict --no-check-version "$folder/composer.json"
    composer archive --no-interaction --working-dir="$folder" --format=zip --dir="$out" --file="redis-lock-php-$package-$version"
  done
}

# --- all of it -----------------------------------------------------------------------------------

# Prints an in-toto statement with SLSA's predicate about the files of SHA256SUMS. It isn't signed.
statement() {
  cat <<END
{
  "_type": "https://in-toto.io/Statement/v1",
  "subject": [
$(sed 's/\([^ ]*\)  \(.*\)/    {"name": "\2", "digest": {"sha256": "\1"}},/; $s/,$//' SHA256SUMS)
  ],
  "predicateType": "https://slsa.dev/provenance/v1",
  "predicate": {
    "buildDefinition": {
      "buildType": "$repository/blob/main/scripts/release.sh",
      "externalParameters": {"command": "make release TAG=$tag"},
      "resolvedDependencies": [
        {"uri": "git+$repository", "digest": {"gitCommit": "$commit"}},
        {"name": "rustc", "annotations": {"version": "$(rustc --version)"}}
      ]
    },
    "runDetails": {"builder": {"id": "$builder"}}
  }
}
END
}

write_sums() {
  cd "$1"
  rm -f SHA256SUMS ./*.intoto.json
  sha256sum -- * >../SHA256SUMS
  mv ../SHA256SUMS SHA256SUMS
  statement >../statement
  mv ../statement "redis-lock-$version.intoto.json"
  sha256sum -- *.intoto.json >>SHA256SUMS
}

release() {
  check_tag "$tag"
  sh scripts/deps.sh deb
  [ -z "$LIBRARIES" ] || sh scripts/deps.sh release
  commit=$(git rev-parse HEAD)
  [ -z "$(git status --porcelain)" ] || die "the work tree isn't clean: commit first, because a release has what HEAD has"
  tagged=$(git rev-parse --quiet --verify "refs/tags/$tag^{commit}" || echo "$commit")
  [ "$tagged" = "$commit" ] || die "$tag exists, and names another commit than HEAD"
  out=$files.part
  rm -rf "$files" "$out"
  mkdir -p "$out"
  (make_tree)
  cd "$tree"
  commit=$(git rev-parse HEAD)
  unset MAKEFLAGS MAKEOVERRIDES MAKELEVEL
  CARGO_TARGET_DIR=$build/release-build
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
  export CARGO_TARGET_DIR SOURCE_DATE_EPOCH
  need_subcommand cargo-cyclonedx 0.5.9
  need_subcommand cargo-generate-rpm 0.21.1
  trap '[ $? = 0 ] || say "it failed in $step"' EXIT
  for step in make_packages make_bills $(for library in $LIBRARIES; do echo "pack_$library"; done); do
    say "$step"
    ("$step" >&2)
  done
  (write_sums "$out")
  mv "$out" "$files"
  (cd "$files" && ls -l | awk 'NR > 1 { printf "%9d  %s\n", $5, $9 }')
  say "the clone with the tag $tag is $tree"
}

# A workflow of GitHub, or someone's machine.
builder=${GITHUB_WORKFLOW_REF:+$GITHUB_SERVER_URL/$GITHUB_WORKFLOW_REF}
builder=${builder:-$repository/blob/main/scripts/release.sh}
LIBRARIES=${LIBRARIES-python node rust java go php}
tag=${1:-}
case $tag in
  sums) tag=${2:-}; check_tag "$tag"; version=${tag#v} commit=$(git rev-parse HEAD); write_sums "$files"; cat SHA256SUMS ;;
  *)
    version=${tag#v}
    # PEP 440, and Debian's and RPM's order of versions.
    python=$(echo "$version" | sed 's/-//') distribution=$(echo "$version" | sed 's/-/~/')
    release
    ;;
esac
