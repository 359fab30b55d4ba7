# `make help` lists the targets. Works with GNU make 3.81 (macOS) and later.

.DEFAULT_GOAL := build
.PHONY: help deps build-deps run-deps test-deps port build run test test-ha test-matrix test-stalled check demo
.PHONY: soak fuzz storms memcheck bench bench-peers bench-docs instructions clean

# The server's port for `make run`.
PORT ?= 6379
# Tests mostly wait for servers: more at once than there are cores.
TEST_THREADS ?= 4
# How long crowds of clients go on against each other in `make soak`.
LOCK_SOAK_SECONDS ?= 30
# Before how many of 1,000 steps a client stands still in `make test-stalled`, and how many tests
# run at once there: they mostly sleep.
LOCK_TEST_STALLS ?= 40
STALLED_THREADS ?= 16
# Rounds of the race between a grant and its client's death in `make soak`.
LOCK_RACE_ROUNDS ?= 100000

# Where cargo builds: as the environment says, else in target. Absolute, because not all that is run
# here is run from here.
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
override CARGO_TARGET_DIR := $(if $(filter /%,$(firstword $(TARGET_DIR))),$(TARGET_DIR),$(CURDIR)/$(TARGET_DIR))
export CARGO_TARGET_DIR

# What `make storms` and `make memcheck` are told: --quick for a tenth of it, --help for the rest.
STORMS_OPTIONS ?=
MEMCHECK_OPTIONS ?=
# What `make bench` and `make bench-peers` are told: --quick, --only pair,contended, --help for the rest.
BENCH_OPTIONS ?=
PEERS_OPTIONS ?=
# Where a server's results are written, and where those are kept that the documentation shows.
BENCH_RESULTS := $(CARGO_TARGET_DIR)/bench
BENCH_KEPT := bench/results
# How long `make fuzz` sends to each server.
SECONDS ?= 20
MODULE := $(CARGO_TARGET_DIR)/release/libredis_lock.so
export REDIS_LOCK_MODULE ?= $(MODULE)

# Where the server, its client and libclang were found.
FOUND = eval "$$(sh scripts/deps.sh env)"

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

deps: ## find what is missing (a C compiler, libclang, a server, cargo-nextest, valgrind) and install it
	@sh scripts/deps.sh

build-deps:
	@sh scripts/deps.sh build

run-deps: build-deps
	@sh scripts/deps.sh run

test-deps: build-deps
	@sh scripts/deps.sh test

build: build-deps ## build the module: target/release/libredis_lock.so (the default)
	@$(FOUND); cargo build --release
	@touch "$(CARGO_TARGET_DIR)"/release/libredis_lock.* # cargo builds nothing anew for some changes of Cargo.toml
	@if [ "$$(uname -s)" = Darwin ]; then ln -sf libredis_lock.dylib "$(MODULE)"; fi

port:
	@case "$$PORT" in '' | *[!0-9]* | ??????*) false ;; *) [ "$$PORT" -ge 1 ] && [ "$$PORT" -le 65535 ] ;; esac || { \
	  echo "PORT='$$PORT' is no port: it must be a number from 1 to 65535, as in: make run PORT=6380" >&2; exit 1; }

# The server runs in a folder of its own, where its files stay out of the clone, with the example
# configuration: that one names the module by its path from the top of the clone.
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

test: test-deps build ## run every test against a real server
	@$(FOUND); cargo nextest run --workspace --no-fail-fast --test-threads=$(TEST_THREADS)

test-ha: test-deps build ## run the tests of replicas, Sentinel, Cluster and five masters, for some minutes
	@$(FOUND); cargo nextest run --test ha --no-fail-fast --test-threads=$(TEST_THREADS)

test-matrix: test-deps build ## run test and test-ha against each of SERVERS="/path/to/redis-server ..."
	@sh scripts/matrix.sh $(SERVERS)

test-stalled: test-deps build ## run test with clients that stand still at random: finds tests that rely on their speed
	@$(FOUND); LOCK_TEST_STALLS=$(LOCK_TEST_STALLS) cargo nextest run --workspace --no-fail-fast --test-threads=$(STALLED_THREADS)

fuzz: run-deps ## random commands against each of SERVERS (default: the one found) for SECONDS; SEED=n repeats a run
	@$(FOUND); cargo build --profile checked && \
	REDIS_LOCK_MODULE="$(CARGO_TARGET_DIR)/checked/libredis_lock.so" \
	  cargo run --quiet --release --package redis-lock-fuzz -- --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) \
	  $(if $(SERVERS),$(SERVERS),"$$REDIS_SERVER")

check: build-deps deny ## rustfmt, clippy and rustdoc, warnings denied; circles of files; licences of dependencies
	cargo fmt --all --check
	@$(FOUND); set -x; cargo test --quiet --test floors
	@$(FOUND); set -x; cargo clippy --workspace --all-targets -- -D warnings
	@$(FOUND); set -x; cargo clippy --test ha --test upgrade --test packages --test monitoring --test vanished -- -D warnings
	@$(FOUND); set -x; RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

demo: run-deps build ## the oversold flash sale, without a lock and with one
	@$(FOUND); cargo run --example flash_sale

soak: test-deps build ## the death of a client in the tick of its grant, LOCK_RACE_ROUNDS times; crowds for LOCK_SOAK_SECONDS
	@$(FOUND); LOCK_RACE_ROUNDS=$(LOCK_RACE_ROUNDS) cargo nextest run --test waits --no-capture in_the_tick_of_its_grant
	@$(FOUND); LOCK_SOAK_SECONDS=$(LOCK_SOAK_SECONDS) cargo nextest run --test multi --test shared --test-threads=2

storms: run-deps build ## what once stalled a server, beside a PING every ms, on SERVERS="/path/to/redis-server ..."
	@$(FOUND); cargo run --quiet --release -p redis-lock-load --bin storms -- $(STORMS_OPTIONS) \
	  $(if $(SERVERS),$(SERVERS),"$$REDIS_SERVER")

memcheck: run-deps build ## a debug build in a server under valgrind while its clients are killed in every way
	@$(FOUND); cargo build; \
	REDIS_LOCK_MODULE="$(CARGO_TARGET_DIR)/debug/libredis_lock.so" \
	  cargo run --quiet --release -p redis-lock-load --bin memcheck -- $(MEMCHECK_OPTIONS) "$$REDIS_SERVER"

bench: run-deps build ## what locks cost beside what is used without them, on SERVERS="/path/to/redis-server ..."
	@$(FOUND); cargo run --quiet --release -p redis-lock-bench --bin bench -- --results "$(BENCH_RESULTS)" \
	  $(BENCH_OPTIONS) $(if $(SERVERS),$(SERVERS),"$$REDIS_SERVER")

bench-peers: run-deps build ## the libraries that people use beside LOCK.WAIT through the same clients; needs python3 and npm
	@sh bench/peers/install.sh "$(BENCH_RESULTS)/peers"
	@$(FOUND); cargo run --quiet --release -p redis-lock-bench --bin peers -- --results "$(BENCH_RESULTS)" \
	  --installed "$(BENCH_RESULTS)/peers" $(PEERS_OPTIONS) $(if $(SERVERS),$(SERVERS),"$$REDIS_SERVER")

bench-docs: ## keep the results of full runs in bench/results, and write them into docs/performance.md and docs/plots
	@mkdir -p $(BENCH_KEPT) docs/plots
	@for file in "$(BENCH_RESULTS)"/*.json; do \
	  case "$${file##*/}" in '*.json' | quick-*) ;; *) cp "$$file" $(BENCH_KEPT)/ ;; esac; \
	done
	@rm -f docs/plots/*.svg
	cargo run --quiet --release -p redis-lock-bench --bin bench -- --results $(BENCH_KEPT) \
	  --tables docs/performance.md --plots docs/plots

instructions: run-deps build ## instructions of a lock and its release under valgrind, held to a bound, on SERVERS
	@$(FOUND); cargo run --quiet --release -p redis-lock-bench --bin instructions -- --results "$(BENCH_RESULTS)" \
	  $(if $(SERVERS),$(SERVERS),"$$REDIS_SERVER")

# Which clients `make test-clients` tries, all without: CLIENTS="python-sync ioredis". Where a server of
# SERVERS isn't named, the one found is. Tests mostly wait for time to pass.
CLIENTS ?=
CLIENT_THREADS ?= 6
.PHONY: test-clients
test-clients: run-deps build ## the client libraries against one server and a cluster; CLIENTS="python-sync ..." picks, SERVERS too
	@$(FOUND); cargo run --quiet -p redis-lock-conformance -- --test-threads=$(CLIENT_THREADS) \
	  $(foreach client,$(CLIENTS),--client $(client)) $(foreach server,$(SERVERS),--server "$(server)")

# --- packages ---------------------------------------------------------------------------------

.PHONY: install uninstall deb dist test-upgrade test-packages test-monitoring test-vanished deny

# Where `make install` puts the module, below which folder; by default where the server lies.
PREFIX ?=
DESTDIR ?=
# The target that `make dist` builds for: by default this machine.
TARGET ?=
# The commit whose build `make test-upgrade` changes from and to: the first one with the format of now.
OLD ?= 7b6b85f

install: build ## copy the module to PREFIX/lib/redis/modules, PREFIX being the server's by default; DESTDIR
	@$(FOUND); MODULE="$(MODULE)" PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" sh scripts/install.sh install

uninstall: ## remove what `make install` with the same PREFIX and DESTDIR has copied
	@$(FOUND); PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" sh scripts/install.sh uninstall

# Built once, where it is missing, away from what is built here.
CARGO_DEB = cargo deb --version >/dev/null 2>&1 || \
  (unset CARGO_TARGET_DIR; cargo install --locked --version 3.8.0 --no-default-features cargo-deb)

deb: build ## a Debian package: target/debian
	@$(CARGO_DEB)
	@$(FOUND); cargo deb --no-build

dist: build-deps ## a tarball for TARGET, this machine by default: target/dist
	@$(FOUND); TARGET="$(TARGET)" sh scripts/dist.sh

test-upgrade: test-deps build ## run the tests of upgrades and downgrades, from and to the build of OLD=commit
	@$(FOUND); builds=$$(sh scripts/other-builds.sh "$(OLD)") && eval "$$builds" && \
	  cargo nextest run --test upgrade --no-fail-fast --test-threads=$(TEST_THREADS)

test-packages: test-deps deb dist ## install the package and the tarball in a namespace, as root, and run the server there
	@$(FOUND); cargo nextest run --test packages --no-fail-fast

# Network namespaces take root, or a user namespace of their own. `ip` isn't in everybody's PATH.
test-vanished: test-deps build ## machines that vanish without closing their connections, on SERVERS; needs iproute2, openssl
	@PATH="$$PATH:/usr/sbin:/sbin"; $(FOUND); \
	unshared=; [ "$$(id -u)" = 0 ] || unshared="unshare --user --map-root-user"; \
	ip -V >/dev/null 2>&1 && openssl version >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ]; then apt-get install -y iproute2 openssl; else sudo apt-get install -y iproute2 openssl; fi; }; \
	cargo nextest run --test vanished --no-run && \
	printf '%s\n' $(if $(SERVERS),$(SERVERS),"$$REDIS_SERVER") | xargs -P 6 -I SERVER \
	  $$unshared env REDIS_SERVER=SERVER cargo nextest run --test vanished --no-fail-fast --test-threads=4

test-monitoring: test-deps build ## run the exporter and Prometheus's own checks on monitoring/
	@$(FOUND); programs=$$(sh scripts/prometheus.sh) && eval "$$programs" && cargo nextest run --test monitoring --no-fail-fast

# Built once, where it is missing, as cargo-deb is. It looks up nothing outside: known weaknesses (advisories) lie
# in a git repository that can't be reached from everywhere.
deny: ## licences and sources of all dependencies
	@cargo deny --version >/dev/null 2>&1 || \
	  (unset CARGO_TARGET_DIR; cargo install --locked --version 0.20.2 cargo-deny)
	cargo deny --log-level error check licenses bans sources

.PHONY: pages
pages: run-deps build ## write into the pages of the commands (docs/commands) what the module tells of them
	@$(FOUND); cargo run --quiet -p redis-lock-pages -- "$$REDIS_SERVER"

.PHONY: test-postgres
test-postgres: test-deps build ## the example of leader election with a real PostgreSQL, installed where it is missing
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ]; then apt-get install -y postgresql; else sudo apt-get install -y postgresql; fi; }
	@$(FOUND); cargo nextest run -p redis-lock-leader-election --test leader_election

clean: ## remove what was built
	cargo clean
