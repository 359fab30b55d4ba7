<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * The servers of a deployment, and which of them serves a key.
 *
 * @internal
 */
interface Servers
{
    /** Returns the server that serves the key, as far as known. */
    public function of(string $key, float $until): Server;

    /** Returns false if another server is known to have taken over from this one. */
    public function isCurrent(Server $server, float $until): bool;

    /** Notes that a server of a cluster named another one for the key, and returns that one. */
    public function moved(string $key, Server $from, string $host, int $port): Server;

    /** Notes that a server doesn't serve now. */
    public function failed(Server $server): void;
}
