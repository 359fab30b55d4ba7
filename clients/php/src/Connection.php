<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * A connection that sends commands, each with a time limit for its reply. After a failure the
 * connection isn't used again, because phpredis gives a late reply to the next command.
 *
 * @internal
 */
final class Connection
{
    /** Time limit in seconds of a reply that the server sends at once. */
    public const ANSWER = 1.0;

    /** Patterns of the server's errors, which phpredis throws or not, and of the temporary ones. */
    private const ERROR = '/^[A-Z]+ /';
    private const PASSING = '/^(LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|MOVED|ASK) '
        . '|^UNBLOCKED .*instance state changed/';

    private \Redis|\RedisCluster|null $redis = null;

    /** @param \Closure(): (\Redis|\RedisCluster) $connect */
    public function __construct(private readonly \Closure $connect)
    {
    }

    /**
     * Sends `LOCK.$name keys ...words` once.
     *
     * @param non-empty-list<string> $keys
     * @param list<string|int> $words
     * @throws Refused
     * @throws \RedisException|\RedisClusterException a temporary error
     */
    public function ask(string $name, array $keys, array $words, float $within = self::ANSWER): mixed
    {
        return Signals::after(fn () => $this->exchange($name, $keys, $words, $within));
    }

    /**
     * @param non-empty-list<string> $keys
     * @param list<string|int> $words
     */
    private function exchange(string $name, array $keys, array $words, float $within): mixed
    {
        $redis = $this->redis;
        $this->redis = null;
        try {
            $redis ??= ($this->connect)();
            $reply = $this->reply($redis, self::command($redis, $name, $keys, $words), $keys[0], $within);
            $this->redis = $redis;
            return $reply;
        } catch (\RedisException|\RedisClusterException $failure) {
            if (self::mayPass($failure)) {
                throw $failure;
            }
            // The connection is intact, and a session may be tied to it.
            $this->redis = $redis;
            throw new Refused($failure);
        } finally {
            if ($this->redis === null) {
                $redis?->close();
            }
        }
    }

    private static function mayPass(\RedisException|\RedisClusterException $failure): bool
    {
        $error = $failure->getMessage();
        return !preg_match(self::ERROR, $error) || preg_match(self::PASSING, $error);
    }

    /**
     * Returns the command with prefixed keys, because phpredis adds no prefix in a raw command.
     *
     * @param non-empty-list<string> $keys
     * @param list<string|int> $words
     * @return non-empty-list<string|int>
     */
    private static function command(\Redis|\RedisCluster $redis, string $name, array $keys, array $words): array
    {
        $start = count($keys) > 1 ? ["LOCK.M$name", count($keys)] : ["LOCK.$name"];
        return [...$start, ...array_map($redis->_prefix(...), $keys), ...$words];
    }

    /** @param non-empty-list<string|int> $command */
    private function reply(\Redis|\RedisCluster &$redis, array $command, string $key, float $within): mixed
    {
        if ($redis instanceof \Redis) {
            $redis->setOption(\Redis::OPT_READ_TIMEOUT, $within);
            return self::told($redis, $redis->rawCommand(...$command));
        }
        // The nodes of a cluster have the timeout that the client was made with.
        $sent = Clock::now();
        try {
            return self::told($redis, $redis->rawCommand($redis->_prefix($key), ...$command));
        } catch (\RedisClusterException $failure) {
            if (!self::mayPass($failure) || Clock::now() - $sent >= self::ANSWER) {
                throw $failure;
            }
            $redis->close();
            $redis = ($this->connect)();
            return self::redirected($redis, $command, $key, $failure);
        }
    }

    private static function told(\Redis|\RedisCluster $redis, mixed $reply): mixed
    {
        $error = $redis->getLastError();
        if ($error === null) {
            return $reply;
        }
        $redis->clearLastError();
        throw $redis instanceof \Redis ? new \RedisException($error) : new \RedisClusterException($error);
    }

    /**
     * Sends the command in a script, because RedisCluster follows MOVED and ASK only for scripts.
     * In a script, a wait is a single try.
     *
     * @param non-empty-list<string|int> $command
     */
    private static function redirected(
        \RedisCluster $redis,
        array $command,
        string $key,
        \RedisClusterException $failure,
    ): mixed {
        try {
            return self::told($redis, $redis->eval('return redis.pcall(unpack(ARGV))', [$key, ...$command], 1));
        } catch (\RedisClusterException $other) {
            throw str_starts_with($other->getMessage(), 'NOPERM') ? $failure : $other;
        }
    }
}
