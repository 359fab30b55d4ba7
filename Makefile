# `make help` lists the targets. Works with GNU make 3.81 (macOS) and later.

.DEFAULT_GOAL := build
.PHONY: help deps build run test test-ha test-matrix test-stalled fuzz check demo soak clean

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

# How long `make fuzz` sends to each server.
SECONDS ?= 20

# redis.conf.example names the module by its path from here.
export CARGO_TARGET_DIR := $(CURDIR)/target
MODULE := $(CARGO_TARGET_DIR)/release/libredis_lock.so
export REDIS_LOCK_MODULE ?= $(MODULE)

# Where the server, its client and libclang were found.
FOUND = eval "$$(sh scripts/deps.sh env)"

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

deps: ## find what is missing (a server, libclang, a C compiler) and install it
	@sh scripts/deps.sh

build: deps ## build the module: target/release/libredis_lock.so (the default)
	@$(FOUND); cargo build --release
	@if [ "$$(uname -s)" = Darwin ]; then ln -sf libredis_lock.dylib "$(MODULE)"; fi

run: build ## start a server with the module on PORT (6379), ready for redis-cli
	@$(FOUND); \
	if "$$REDIS_CLI" -p $(PORT) ping >/dev/null 2>&1; then \
	  echo "port $(PORT) is taken: stop the server there, or: make run PORT=6380" >&2; exit 1; \
	fi; \
	echo "starting $$REDIS_SERVER; in another terminal: $$REDIS_CLI -p $(PORT)"; \
	exec "$$REDIS_SERVER" redis.conf.example --port $(PORT)

test: build ## run every test against a real server
	@$(FOUND); cargo test --workspace --no-fail-fast -- --test-threads=$(TEST_THREADS)

test-ha: build ## run the tests of replicas, Sentinel, Cluster and five masters, for some minutes
	@$(FOUND); cargo test --test ha --no-fail-fast -- --test-threads=$(TEST_THREADS)

test-matrix: build ## run test and test-ha against each of SERVERS="/path/to/redis-server ...", a line for each
	@sh scripts/matrix.sh $(SERVERS)

test-stalled: build ## run test with clients that stand still at random: finds tests that rely on their speed
	@$(FOUND); LOCK_TEST_STALLS=$(LOCK_TEST_STALLS) cargo test --workspace --no-fail-fast -- --test-threads=$(STALLED_THREADS)

fuzz: build ## random commands against each of SERVERS (default: the one found) for SECONDS; SEED=n repeats a run
	@$(FOUND); cargo run --quiet --release --package redis-lock-fuzz -- --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) \
	  $(if $(SERVERS),$(SERVERS),"$$REDIS_SERVER")

check: deps ## rustfmt, clippy and rustdoc, warnings denied
	cargo fmt --all --check
	@$(FOUND); set -x; cargo clippy --workspace --all-targets -- -D warnings
	@$(FOUND); set -x; cargo clippy --test ha -- -D warnings
	@$(FOUND); set -x; RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

demo: build ## the oversold flash sale, without a lock and with one
	@$(FOUND); cargo run --quiet --example flash_sale

soak: build ## the death of a client in the tick of its grant, LOCK_RACE_ROUNDS times; crowds for LOCK_SOAK_SECONDS
	@$(FOUND); LOCK_RACE_ROUNDS=$(LOCK_RACE_ROUNDS) cargo test --test wakeups in_the_tick_of_its_grant -- --nocapture
	@$(FOUND); LOCK_SOAK_SECONDS=$(LOCK_SOAK_SECONDS) cargo test --test multi --test shared -- --test-threads=2

clean: ## remove what was built
	cargo clean
