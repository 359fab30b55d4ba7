# A server with the module. Another server: docker build --build-arg SERVER=redis:8.2-bookworm --build-arg
# PROGRAM=redis-server . (one with the C library of Debian 12 or later). Before 8.1.9 Valkey 8.1 has defects that
# docs/operate/known-defects.md names.
ARG SERVER=valkey/valkey:8.1.11-trixie

FROM rust:1.88-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends libclang-dev
WORKDIR /redis-lock
COPY . .
RUN make build
RUN make cli
RUN make install DESTDIR=/image PREFIX=/usr

FROM ${SERVER}
ARG PROGRAM=valkey-server
ENV PROGRAM=${PROGRAM}
COPY --from=build /image/ /
COPY --chmod=755 packaging/entrypoint.sh /usr/local/bin/redis-lock-entrypoint
# With REDIS_PASSWORD clients need that password. Without it protected mode refuses all connections from outside the
# container; the servers' own images turn that mode off.
ENTRYPOINT ["redis-lock-entrypoint"]
# The base image's command is not inherited with an entry point of one's own.
CMD []
