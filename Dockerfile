# A server with the module. Another server: docker build --build-arg SERVER=redis:8.2-bookworm --build-arg
# PROGRAM=redis-server . (one with the C library of Debian 12 or later). Before 8.1.9 Valkey 8.1 has defects that
# docs/operate/known-defects.md names.
ARG SERVER=valkey/valkey:8.1.11-trixie

FROM rust:1.88-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends libclang-dev
WORKDIR /redis-lock
COPY . .
RUN make build

FROM ${SERVER}
ARG PROGRAM=valkey-server
ENV PROGRAM=${PROGRAM}
COPY --from=build --chmod=755 /redis-lock/target/release/libredis_lock.so /usr/lib/redis/modules/libredis_lock.so
COPY packaging/redis-lock.conf /etc/redis-lock.conf
# With REDIS_PASSWORD clients need that password. Without it protected mode refuses all connections from outside the
# container; the servers' own images turn that mode off.
# The password goes by standard input: some servers misread one with spaces or quotes among their arguments.
CMD ["sh", "-c", "line=; if [ -n \"$REDIS_PASSWORD\" ]; then line=\"requirepass \\\"$(printf %s \"$REDIS_PASSWORD\" | sed 's/[\\\\\"]/\\\\&/g')\\\"\"; fi; exec $PROGRAM /etc/redis-lock.conf --protected-mode yes --dir /data - <<END\n$line\nEND\n"]
