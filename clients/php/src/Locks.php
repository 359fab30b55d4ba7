<?php

declare(strict_types=1);

namespace RedisLock;

/** Makes locks. */
final class Locks
{
    /** @var \Closure(): (\Redis|\RedisCluster) */
    private readonly \Closure $connect;
    private readonly Connection $connection;

    /**
     * @param callable(): (\Redis|\RedisCluster) $connect makes a new connection, which nothing else uses. It is
     *     called when there is something to send, and again when a connection is lost.
     */
    public function __construct(callable $connect)
    {
        $this->connect = $connect(...);
        $this->connection = new Connection($this->connect);
    }

    /**
     * One owner of a lock. Nothing is sent yet.
     *
     * @param string|non-empty-list<string> $keys several are had all or none; in a cluster they are in one slot
     * @param float $lease for how many seconds the lock is granted
     * @param ?string $token the owner's name; 128 random bits without
     * @param bool $shared shared holders admit each other
     * @param ?int $limit how many shared holders there are at most
     * @param ?int $permits as how many of them this one counts
     * @param bool $session the lock is freed as its connection closes; until then the server renews the lease
     * @param float $keep for how many seconds the place in the queue outlives its connection
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
        // A wait changes its connection now and then, which would free what is tied to it.
        $connection = $session ? new Connection($this->connect) : $this->connection;
        $token ??= bin2hex(random_bytes(16));
        return new Lock($connection, $keys, $token, $lease, $shared, $limit, $permits, $session, $keep);
    }
}
