# `make help` lists the targets. Works with GNU make 3.81 (macOS) and later.

.DEFAULT_GOAL := build
# One package manager at a time; cargo itself runs in parallel.
.NOTPARALLEL:
.PHONY: help deps build-deps run-deps test-deps port build cli run unit quick test test-ha test-speed test-matrix test-stalled check demo
.PHONY: soak small-world sim planted fuzz storms memcheck bench bench-peers bench-docs instructions clean

# The server's port for `make run`.
PORT ?= 6379
# Tests mostly wait for servers: more at once than there are cores.
TEST_THREADS ?= 10
# Packages that `make test` leaves out.
EXCLUDE ?=
# The tests that targets with tests run, as a filter of cargo-nextest: ONLY='test(=queue::places)'; all by default.
ONLY ?=
NEXTEST = cargo nextest run --no-fail-fast $(if $(ONLY),-E '$(ONLY)')
# Seconds for which crowds of clients compete in `make soak`.
LOCK_SOAK_SECONDS ?= 30
# Steps in 1,000 before which a client pauses in `make test-stalled`, and the tests that run at once
# there. They mostly sleep.
LOCK_TEST_STALLS ?= 40
STALLED_THREADS ?= 16
# Seconds of each of the three searches of `make small-world`.
SMALL_WORLD_SECONDS ?= 100
# Runs of `make sim`: 5 million steps.
SEEDS ?= 1000
# Rounds of the race between a grant and its client's death in `make soak`.
LOCK_RACE_ROUNDS ?= 100000

# The directory that cargo builds in. Absolute, because some commands run in other directories.
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
override CARGO_TARGET_DIR := $(if $(filter /%,$(firstword $(TARGET_DIR))),$(TARGET_DIR),$(CURDIR)/$(TARGET_DIR))
export CARGO_TARGET_DIR

# Options of `make storms` and `make memcheck`: --quick runs a tenth, --help lists the others.
STORMS_OPTIONS ?=
MEMCHECK_OPTIONS ?=
# Options of `make bench` and `make bench-peers`: --quick, --only pair,contended; --help lists the others.
BENCH_OPTIONS ?=
PEERS_OPTIONS ?=
# The directory for new results, and the one for results that the documentation shows.
BENCH_RESULTS := $(CARGO_TARGET_DIR)/bench
BENCH_KEPT := bench/results
# Seconds for which `make fuzz` sends commands to each server.
SECONDS ?= 20
# The test binary that `make quick` runs.
T ?= waiting
MODULE := $(CARGO_TARGET_DIR)/release/libredis_lock.so
export REDIS_LOCK_MODULE ?= $(MODULE)

# Exports the paths of the server, its client and libclang.
FOUND = eval "$$(sh scripts/deps.sh env)"

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

deps: ## install what is missing: a C compiler, libclang, a server, cargo-nextest, valgrind
	@sh scripts/deps.sh

build-deps:
	@sh scripts/deps.sh build

run-deps:
	@sh scripts/deps.sh run

test-deps:
	@sh scripts/deps.sh test

build: build-deps ## build the module: target/release/libredis_lock.so (the default)
	@$(FOUND); cargo build --release
	@touch "$(CARGO_TARGET_DIR)"/release/libredis_lock.* # cargo rebuilds nothing after some changes of Cargo.toml
	@if [ "$$(uname -s)" = Darwin ]; then ln -sf libredis_lock.dylib "$(MODULE)"; fi

cli: build-deps ## build the command redis-lock, its manual pages and completions: target/release/redis-lock
	@$(FOUND); cargo build --release --package redis-lock-cli
	@sh scripts/command-files.sh "$(CARGO_TARGET_DIR)/release"

port:
	@case "$$PORT" in '' | *[!0-9]* | ??????*) false ;; *) [ "$$PORT" -ge 1 ] && [ "$$PORT" -le 65535 ] ;; esac || { \
	  echo "PORT='$$PORT' is no port: it must be a number from 1 to 65535, as in: make run PORT=6380" >&2; exit 1; }

# The server runs in a directory of its own, which keeps its files out of the clone. It uses the example
# configuration, in which the path of the module is replaced.
run: export PORT := $(PORT)
run: export MODULE := $(MODULE)
run: port run-deps build ## start a server with the module on PORT (6379), ready for redis-cli
	@$(FOUND); \
	if "$$REDIS_CLI" -p "$$PORT" ping >/dev/null 2>&1; then \
	  echo "port $$PORT is taken: stop the server there, or: make run PORT=6380" >&2; exit 1; \
	fi; \
	folder="$$CARGO_TARGET_DIR/run/$$PORT"; mkdir -p "$$folder"; \
	awk '$$1 == "loadmodule" { $$0 = "loadmodule \"" ENVIRON["MODULE"] "\"" } { print }' redis.conf.example >"$$folder/redis.conf"; \
	echo "starting $$REDIS_SERVER in $$folder; in another terminal: $$REDIS_CLI -p $$PORT"; \
	exec "$$REDIS_SERVER" "$$folder/redis.conf" --port "$$PORT" --dir "$$folder"

unit: ## run the core's tests with an eighth of the random cases: no server, no libclang, some seconds
	@PROPTEST_CASES=32 cargo test --quiet --package redis-lock-core

# The features of the whole workspace, so that it shares the crates that `make test` built.
quick: test-deps ## build the module for debugging and run one binary of tests: T=waiting
	@$(FOUND); cargo build --workspace --lib --test $(T) && REDIS_LOCK_MODULE="$(CARGO_TARGET_DIR)/debug/libredis_lock.so" \
	  cargo nextest run --workspace --test $(T) --no-fail-fast --test-threads=$(TEST_THREADS)

test: test-deps build ## run every test against a real server
	@$(FOUND); $(NEXTEST) --workspace $(addprefix --exclude ,$(EXCLUDE)) --test-threads=$(TEST_THREADS)

test-ha: test-deps build ## run the tests of replicas, Sentinel, Cluster and independent masters (2 minutes)
	@$(FOUND); $(NEXTEST) --test ha --test-threads=$(TEST_THREADS)

test-speed: test-deps build ## time how soon the next waiter is served, on SERVERS; needs a quiet machine
	@$(FOUND); status=0; for server in $(if $(SERVERS),$(SERVERS),"$$REDIS_SERVER"); do \
	  REDIS_SERVER="$$server" $(NEXTEST) --test latency --test-threads=1 || status=1; \
	done; exit $$status

test-matrix: test-deps build ## run test and test-ha against each of SERVERS="/path/to/redis-server ..."
	@sh scripts/matrix.sh $(SERVERS)

test-stalled: test-deps build ## run the tests with clients that pause at random, to find tests that rely on speed
	@$(FOUND); LOCK_TEST_STALLS=$(LOCK_TEST_STALLS) $(NEXTEST) --workspace --test-threads=$(STALLED_THREADS)

fuzz: run-deps ## send random commands to each of SERVERS for SECONDS; SEED=n repeats a run
	@$(FOUND); cargo build --profile checked && \
	REDIS_LOCK_MODULE="$(CARGO_TARGET_DIR)/checked/libredis_lock.so" \
	  cargo run --quiet --profile tool --package redis-lock-fuzz -- --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) \
	  $(if $(SERVERS),$(SERVERS),"$$REDIS_SERVER")

check: build-deps deny ## run rustfmt, clippy, rustdoc, cycles of files, planted patches and the licences of dependencies
	cargo fmt --all --check
	find tests/planted -name '*.patch' | xargs -n 1 git apply --check
	@$(FOUND); set -x; cargo test --quiet --test cycles
	@$(FOUND); set -x; cargo clippy --workspace --all-targets -- -D warnings
	@$(FOUND); set -x; cargo clippy --test ha --test latency --test upgrade --test packages --test monitoring --test vanished --test spring_shop --test panics --features planted-panics -- -D warnings
	@$(FOUND); set -x; RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

demo: run-deps build ## show an oversold flash sale, without a lock and with one
	@$(FOUND); cargo run --example flash_sale

soak: test-deps build ## kill clients in the tick of their grant, LOCK_RACE_ROUNDS times; run crowds for LOCK_SOAK_SECONDS
	@$(FOUND); LOCK_RACE_ROUNDS=$(LOCK_RACE_ROUNDS) cargo nextest run --test waiting --no-capture in_the_tick_of_its_grant
	@$(FOUND); LOCK_SOAK_SECONDS=$(LOCK_SOAK_SECONDS) cargo nextest run --test kinds --test-threads=2

small-world: ## search every interleaving of a small world and of two clients, 5 minutes on one core
	SMALL_WORLD_SECONDS=$(SMALL_WORLD_SECONDS) cargo test --profile checked --package redis-lock-core --test lock_table -- \
	  --nocapture --test-threads=1 keeps_the_promises keeps_its_promises

sim: ## simulate servers, replicas, clients and faults in made-up time, SEEDS=n runs, from SEED=n on
	SIM_SEED=$(or $(SEED),1) SIM_SEEDS=$(SEEDS) cargo test --profile tool --package redis-lock-core --test lock_table -- \
	  --nocapture every_seed_keeps_the_promises

planted: ## plant each bug of tests/planted, or of PATCHES, and show which of the core's tests catch it
	@scripts/planted.sh $(PATCHES)

.PHONY: planted-module
planted-module: test-deps ## plant each bug of tests/planted/module, or of PATCHES, in the module, and show which server test catches it
	@$(FOUND); bash scripts/planted-module.sh $(PATCHES)

.PHONY: planted-clients
planted-clients: run-deps build ## plant each bug of tests/planted/clients, or of PATCHES, in its library, and show which row catches it
	@$(FOUND); cargo build --quiet --profile tool -p redis-lock-conformance -p redis-lock-rig && \
	  bash scripts/planted-clients.sh $(PATCHES)

# The shard of the mutants that `make mutants` plays, k/n from 0/n on; all by default.
SHARD ?= 0/1
.PHONY: mutants fuzz-bytes
mutants: ## play the core's tests with every mutant of the core that cargo-mutants lists; SHARD=0/8 plays an eighth
	@sh scripts/mutants.sh core --shard $(SHARD)

# The number of mutants that `make mutants-shell` draws by SEED.
SAMPLE ?= 300
.PHONY: mutants-shell
mutants-shell: test-deps ## play server tests with SAMPLE=300 mutants of the module around the core, drawn by SEED=1
	@$(FOUND); sh scripts/mutants.sh shell --sample $(SAMPLE) --seed $(or $(SEED),1) --shard $(SHARD)

# The targets of `make fuzz-bytes`. KEEP=yes adds what they find to the kept inputs.
BYTES ?= commands stored apply table
KEEP ?=
fuzz-bytes: ## fuzz the core with bytes guided by coverage, for SECONDS each target; needs a C++ compiler
	@KEEP=$(KEEP) sh scripts/fuzz-bytes.sh $(SECONDS) $(BYTES)

storms: run-deps build ## repeat what once stalled a server, and time a PING every ms meanwhile, on SERVERS
	@$(FOUND); cargo run --quiet --profile tool -p redis-lock-load --bin storms -- $(STORMS_OPTIONS) \
	  $(if $(SERVERS),$(SERVERS),"$$REDIS_SERVER")

memcheck: run-deps build ## run a debug build under valgrind while its clients are killed in every way
	@$(FOUND); cargo build; \
	REDIS_LOCK_MODULE="$(CARGO_TARGET_DIR)/debug/libredis_lock.so" \
	  cargo run --quiet --profile tool -p redis-lock-load --bin memcheck -- $(MEMCHECK_OPTIONS) "$$REDIS_SERVER"

# Hours of load in `make endurance`, and seconds of rest between two acts.
HOURS ?= 8
REST ?= 1
.PHONY: endurance
endurance: run-deps build ## put a server under mixed load for HOURS, and draw its memory, descriptors and latency
	@$(FOUND); cargo run --quiet --profile tool -p redis-lock-load --bin endurance -- \
	  --module "$(MODULE)" --results "$(BENCH_RESULTS)" --hours $(HOURS) --rest $(REST) "$$REDIS_SERVER"

# A directory with the source of the server that `make asan` builds; Debian's source of Redis by default.
SOURCE ?=
.PHONY: asan
asan: test-deps ## run the server tests, and random commands for SECONDS, with AddressSanitizer in server and module
	@ONLY='$(ONLY)' sh scripts/asan.sh $(SECONDS) $(SOURCE)

bench: run-deps build ## measure what locks cost, on SERVERS="/path/to/redis-server ..." (26 minutes a server)
	@$(FOUND); cargo run --quiet --profile tool -p redis-lock-bench --bin bench -- --results "$(BENCH_RESULTS)" \
	  $(BENCH_OPTIONS) $(if $(SERVERS),$(SERVERS),"$$REDIS_SERVER")

bench-peers: run-deps build ## measure other lock libraries against this one; needs python3, npm, Go, Maven (60 minutes)
	@sh bench/peers/install.sh "$(BENCH_RESULTS)/peers"
	@$(FOUND); cargo run --quiet --profile tool -p redis-lock-bench --bin peers -- --results "$(BENCH_RESULTS)" \
	  --installed "$(BENCH_RESULTS)/peers" $(PEERS_OPTIONS) $(if $(SERVERS),$(SERVERS),"$$REDIS_SERVER")

bench-docs: ## copy the results of full runs into bench/results, and write docs/performance and docs/plots
	@mkdir -p $(BENCH_KEPT)
	@for file in "$(BENCH_RESULTS)"/*.json; do \
	  case "$${file##*/}" in '*.json' | quick-*) ;; *) cp "$$file" $(BENCH_KEPT)/ ;; esac; \
	done
	@rm -f docs/plots/*.svg docs/performance/*-[0-9]*.md
	cargo run --quiet --profile tool -p redis-lock-bench --bin bench -- --results $(BENCH_KEPT) --docs docs

instructions: run-deps build ## count instructions under valgrind on SERVERS, and check their bounds
	@$(FOUND); cargo run --quiet --profile tool -p redis-lock-bench --bin instructions -- --results "$(BENCH_RESULTS)" \
	  $(if $(SERVERS),$(SERVERS),"$$REDIS_SERVER")

# What `make test-clients` runs; all by default: CLIENTS="python-sync ioredis", or LIBRARIES="python go";
# KINDS="standalone cluster sentinel"; PARTS="rows tests speed"; ROW='go | Redis 7.0.15 | ...', one test by its name.
# The tests mostly wait for time to pass; the suite itself took 44 % of a CPU as a debug build.
CLIENTS ?=
LIBRARIES ?=
KINDS ?=
PARTS ?=
ROW ?=
CLIENT_THREADS ?= 12
.PHONY: test-clients
test-clients: run-deps build ## test the client libraries; CLIENTS="python-sync ...", KINDS, PARTS and SERVERS pick
	@$(FOUND); cargo build --quiet --profile tool -p redis-lock-conformance -p redis-lock-rig && \
	  "$(CARGO_TARGET_DIR)/tool/conformance" --test-threads=$(CLIENT_THREADS) \
	  $(foreach client,$(CLIENTS),--client $(client)) $(foreach library,$(LIBRARIES),--library $(library)) \
	  $(foreach kind,$(KINDS),--kind $(kind)) $(foreach part,$(PARTS),--part $(part)) \
	  $(foreach server,$(SERVERS),--server "$(server)") $(if $(ROW),--exact '$(ROW)')

# Minutes of chaos on each kind of servers, and its seed; the time by default.
# KINDS="standalone cluster sentinel replicas masters".
MINUTES ?= 1
SEED ?=
.PHONY: chaos
chaos: run-deps build ## play all clients amid faults of servers, connections and clients: MINUTES=1 SEED= KINDS= CLIENTS=
	@$(FOUND); cargo build --quiet --profile tool -p redis-lock-conformance -p redis-lock-rig && \
	  $$(unshare --mount true 2>/dev/null && echo unshare --mount) "$(CARGO_TARGET_DIR)/tool/conformance" --chaos $(MINUTES) $(if $(SEED),--seed $(SEED)) \
	  $(foreach client,$(CLIENTS),--client $(client)) $(foreach kind,$(KINDS),--kind $(kind)) \
	  $(foreach server,$(SERVERS),--server "$(server)")

# --- packages ---------------------------------------------------------------------------------

.PHONY: install uninstall deb-deps packaged deb dist test-upgrade test-packages test-bare test-release test-musl test-arm test-monitoring test-vanished test-panics deny

# The root that `make install` copies the module to; the server's by default.
PREFIX ?=
DESTDIR ?=
# The target that `make dist` builds for; this machine by default.
TARGET ?=
# The commit that `make test-upgrade` upgrades from and downgrades to: the first with the current format.
OLD ?= 7b6b85f

# Builds nothing: root often has no cargo, and should not write into a user's target directory.
install: ## copy what `make build cli` built to PREFIX, which is the server's by default; needs no cargo
	@$(FOUND); BUILT="$(CARGO_TARGET_DIR)/release" PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" sh scripts/install.sh install

uninstall: ## remove what `make install` copied with the same PREFIX and DESTDIR
	@$(FOUND); PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" sh scripts/install.sh uninstall

# Builds cargo-deb once if it is missing, outside this project's target directory.
CARGO_DEB = cargo deb --version >/dev/null 2>&1 || \
  (unset CARGO_TARGET_DIR; export CARGO_PROFILE_DEV_DEBUG=0; \
  cargo install --debug --locked --version 3.8.0 --no-default-features cargo-deb)

deb-deps:
	@sh scripts/deps.sh deb

# The packages run with an older glibc than this machine's, and their module is optimized by a profile, for which a
# server is put under load. PROFILED= leaves both out.
PROFILED ?= yes
packaged: run-deps build
	@$(FOUND); PROFILED="$(PROFILED)" sh scripts/packaged.sh

deb: deb-deps packaged ## build a Debian package: target/debian
	@$(CARGO_DEB)
	@sh scripts/deb.sh

dist: packaged ## build a tarball for TARGET, by default for this machine: target/dist
	@$(FOUND); TARGET="$(TARGET)" sh scripts/dist.sh

# The tag that `make release` builds for: v and the version, like v1.0.0 or v1.0.0-rc1.
TAG ?=
# Further targets of rustc whose tarballs a release has.
TARGETS ?=
.PHONY: release checksums
release: ## build all that TAG=v1.0.0-rc1 publishes, from a clone with that version: target/release-files
	@TARGETS="$(TARGETS)" sh scripts/release.sh "$(TAG)"

checksums: ## write the provenance and the SHA-256 of the files in target/release-files, which TAG publishes
	@sh scripts/release.sh sums "$(TAG)"

test-upgrade: test-deps build ## test upgrades from and downgrades to the build of OLD=commit
	@$(FOUND); builds=$$(sh scripts/other-builds.sh "$(OLD)") && eval "$$builds" && \
	  $(NEXTEST) --test upgrade --test-threads=$(TEST_THREADS)

# `make test-packages PACKAGES=content::` looks at the files alone, and needs no root.
PACKAGES ?= content:: portable:: machine::
test-packages: test-deps deb dist cli ## install the package and the tarball in a namespace as root, and run the server there
	@$(FOUND); $(NEXTEST) --test packages $(PACKAGES)

test-bare: ## run the README's commands in a minimal Debian with Rust and make alone; needs root and debootstrap
	@sh scripts/bare.sh

test-release: ## build a release in a minimal Debian 13, install what it made there, and lock by each; needs root
	@DEBIAN=trixie sh scripts/bare.sh sh tests/packages/released.sh \
	  "$(if $(TAG),$(TAG),v$$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1))"

# The profile of the tools takes less long than that of releases.
test-musl: test-deps build ## build the module and the command for musl, and run them with musl alone; needs rustup target add
	@sh scripts/deps.sh musl
	@$(FOUND); exports=$$(sh scripts/musl.sh) && eval "$$exports" && \
	RUSTFLAGS="$$MUSL_MODULE_FLAGS" cargo build --profile tool --lib --target "$$MUSL_TARGET" && \
	cargo build --profile tool --package redis-lock-cli --target "$$MUSL_TARGET" && \
	REDIS_LOCK_MUSL="$(CARGO_TARGET_DIR)/$$MUSL_TARGET/tool" \
	  $(NEXTEST) --test packages musl::

test-arm: test-deps ## build for arm64, and run the core's and the commands' tests by qemu-user; needs Debian, rustup target add
	@$(FOUND); exports=$$(sh scripts/arm64.sh) && eval "$$exports" && $(NEXTEST) --test commands --test kinds

test-panics: test-deps ## test a module that panics on purpose, once in each callback, on SERVERS
	@$(FOUND); panics="$(CARGO_TARGET_DIR)/panics"; \
	cargo build --lib --features planted-panics --target-dir "$$panics" && \
	for server in $(if $(SERVERS),$(SERVERS),"$$REDIS_SERVER"); do \
	  REDIS_SERVER="$$server" REDIS_LOCK_MODULE="$$panics/debug/libredis_lock.so" \
	    $(NEXTEST) --features planted-panics --test panics || exit 1; \
	done

# Network namespaces need root or a user namespace. `ip` may be missing in a user's PATH.
test-vanished: test-deps build ## test clients whose machines vanish, on SERVERS; needs iproute2 and openssl
	@PATH="$$PATH:/usr/sbin:/sbin"; $(FOUND); \
	unshared=; [ "$$(id -u)" = 0 ] || unshared="unshare --user --map-root-user"; \
	ip -V >/dev/null 2>&1 && openssl version >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ]; then apt-get install -y iproute2 openssl; else sudo apt-get install -y iproute2 openssl; fi; }; \
	cargo nextest run --test vanished --no-run && \
	printf '%s\n' $(if $(SERVERS),$(SERVERS),"$$REDIS_SERVER") | xargs -P 6 -I SERVER \
	  $$unshared env REDIS_SERVER=SERVER $(NEXTEST) --test vanished --test-threads=4

test-monitoring: test-deps build ## run the exporter and Prometheus's own checks on monitoring/
	@$(FOUND); programs=$$(sh scripts/prometheus.sh) && eval "$$programs" && $(NEXTEST) --test monitoring

# Gets cargo-deny once if it is missing, or builds it. It checks no advisories, because their git repository
# cannot be reached from everywhere.
deny: ## check the licences and sources of all dependencies
	@cargo deny --version >/dev/null 2>&1 || sh scripts/prebuilt.sh cargo-deny || { \
	  echo "building cargo-deny, which takes two minutes, once" >&2; \
	  unset CARGO_TARGET_DIR; CARGO_PROFILE_DEV_DEBUG=0 cargo install --debug --locked --version 0.20.2 cargo-deny; }
	cargo deny --log-level error check licenses bans sources

.PHONY: pages
pages: run-deps build ## write the module's own descriptions into docs/commands and docs/commands.json
	@$(FOUND); cargo run --quiet -p redis-lock-pages -- "$$REDIS_SERVER"

.PHONY: recording
recording: run-deps build ## record the README's example in two terminals: docs/pictures/hand-over.svg; needs tmux, asciinema, npm
	@$(FOUND); sh scripts/recording.sh "$$REDIS_SERVER" "$(MODULE)"

.PHONY: site test-site
site: ## build a site of all Markdown, with search and diagrams: target/site; needs npm
	@sh scripts/site.sh

test-site: site ## test the site in headless Chromium: its links, search, diagrams, and width on a phone
	@node --test --test-timeout=300000 scripts/pages/site/site.test.mjs

# --- examples with PostgreSQL ------------------------------------------------------------------

.PHONY: postgres test-postgres test-mariadb demo-spring test-spring

postgres:
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ]; then apt-get install -y postgresql; else sudo apt-get install -y postgresql; fi; }

test-postgres: postgres test-deps build ## run the leader election example with a real PostgreSQL, which it installs if missing
	@$(FOUND); $(NEXTEST) -p redis-lock-leader-election --test leader_election

test-mariadb: ## count the rows of updates under a fence with a real MariaDB, which it installs if missing
	@command -v mariadbd >/dev/null || { \
	  if [ "$$(id -u)" = 0 ]; then apt-get install -y mariadb-server; else sudo apt-get install -y mariadb-server; fi; }
	@$(NEXTEST) -p redis-lock-leader-election --test mariadb

demo-spring: postgres run-deps build ## sell from two Spring Boot services: without a lock, with the JVM's, with ours; needs a JDK and Maven
	@$(FOUND); sh examples/spring-shop/demo

# One test at a time: they share Maven's folders.
test-spring: postgres test-deps build ## run the shop of Spring Boot services with a real PostgreSQL; needs a JDK and Maven
	@$(FOUND); $(NEXTEST) --test spring_shop --test-threads=1

clean: ## remove everything that was built
	cargo clean
