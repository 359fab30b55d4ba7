<?php

declare(strict_types=1);

namespace RedisLock;

/** Factory of locks. */
final class Locks
{
    /** @var \Closure(): (\Redis|\RedisCluster) */
    private readonly \Closure $connect;
    private readonly Connection $connection;

    /**
     * @param callable(): (\Redis|\RedisCluster) $connect makes a new connection, which nothing
     *     else may use. It is called when a command needs a connection, and again after a loss.
     */
    public function __construct(callable $connect)
    {
        $this->connect = $connect(...);
        $this->connection = new Connection($this->connect);
    }

    /**
     * Returns one owner of a lock. Sends nothing.
     *
     * @param string|non-empty-list<string> $keys granted together or not at all; in a cluster, in
     *     one slot
     * @param float $lease seconds for which the lock is granted
     * @param ?string $token name of the owner; 128 random bits by default
     * @param bool $shared true if other shared holders are admitted
     * @param ?int $limit most permits that shared holders take together
     * @param ?int $permits permits that this holder takes
     * @param bool $session the server renews the lease until the connection closes, and then
     *     releases the lock
     * @param float $keep seconds for which the place in the queue outlives its connection
     */
    public function lock(
        string|array $keys,
        float $lease = 30.0,
        ?string $token = null,
        bool $shared = false,
        ?int $limit = null,
        ?int $permits = null,
        bool $session = false,
        float $keep = 10.0,
    ): Lock {
        $keys = array_values((array) $keys);
        if ($keys === []) {
            throw new \ValueError('a lock has at least one key');
        }
        // A separate connection, because waits replace theirs, which would release a session tied
        // to it.
        $connection = $session ? new Connection($this->connect) : $this->connection;
        $token ??= bin2hex(random_bytes(16));
        return new Lock($connection, $keys, $token, $lease, $shared, $limit, $permits, $session, $keep);
    }
}
