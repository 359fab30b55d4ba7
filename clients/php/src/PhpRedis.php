<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * A `Redis` of phpredis.
 *
 * After a lost connection it can fail for good. Then only `connect()` mends it, which forgets all
 * settings, so they are noted before.
 *
 * @internal
 */
final class PhpRedis implements Client
{
    private bool $isOpen = true;
    private readonly string $host;
    private readonly int $port;
    private readonly float $connectTimeout;
    private readonly mixed $login;
    private int $database = 0;
    /** @var array<int, mixed> */
    private array $options = [];

    public function __construct(private readonly \Redis $redis)
    {
        $this->host = $redis->getHost() ?: throw new \InvalidArgumentException('redis must be connected');
        $this->port = max(0, (int) $redis->getPort());
        $this->connectTimeout = $redis->getTimeout() ?: INF;
        $this->login = $redis->getAuth() ?: null;
        $this->database = (int) $redis->getDbNum();
    }

    public function prefix(): string
    {
        return $this->redis->_prefix('');
    }

    public function patience(): float
    {
        return INF;
    }

    public function open(string $key, float $until): void
    {
        $redis = $this->redis;
        if ($this->isOpen && !$redis->isConnected()) {
            // The program has met the end of the connection.
            $this->close();
        }
        if (!$this->isOpen) {
            $this->connect(max(0.001, min($until - Clock::now(), $this->connectTimeout)));
            $this->isOpen = true;
        }
        if ($redis->getMode() !== \Redis::ATOMIC) {
            throw new \LogicException('redis is in a MULTI or a pipeline, which would delay the lock');
        }
        $this->database = $redis->getDbNum();
    }

    public function exchange(#[\SensitiveParameter] array $words, Call $call, float $until): mixed
    {
        $redis = $this->redis;
        // Without a read timeout 0 is read, which would be one if it were set.
        $before = [
            \Redis::OPT_READ_TIMEOUT => $redis->getOption(\Redis::OPT_READ_TIMEOUT)
                ?: (float) ini_get('default_socket_timeout'),
            \Redis::OPT_MAX_RETRIES => $redis->getOption(\Redis::OPT_MAX_RETRIES),
        ];
        $redis->clearLastError();
        try {
            $redis->setOption(\Redis::OPT_READ_TIMEOUT, max(0.001, $until - Clock::now()));
            $redis->setOption(\Redis::OPT_MAX_RETRIES, 0);
            return self::result($redis->rawCommand(...$words), $redis->getLastError());
        } finally {
            array_map($redis->setOption(...), array_keys($before), $before);
        }
    }

    /** Returns a reply of phpredis, which has one value for nil, for an error and for false. */
    public static function result(mixed $reply, ?string $error): mixed
    {
        if ($reply === false && $error !== null) {
            throw new ErrorReply($error);
        }
        return $reply === false || $reply === [] ? null : $reply;
    }

    public function close(): bool
    {
        if ($this->isOpen) {
            // A connection that was closed before has none.
            $this->options = array_map($this->redis->getOption(...), self::names());
        }
        $this->isOpen = false;
        try {
            $this->redis->close();
            if ($this->database !== 0) {
                // phpredis would connect by itself for the program's next command, in database 0.
                $this->redis->connect('/dev/null/closed');
            }
        } catch (\RedisException) {
            // It is closed.
        }
        return false;
    }

    public function name(): string
    {
        return $this->port > 0 ? "$this->host:$this->port" : $this->host;
    }

    private function connect(float $seconds): void
    {
        $this->redis->connect($this->host, $this->port, $seconds, null, 0, $seconds);
        if ($this->login !== null) {
            $this->redis->auth($this->login);
        }
        if ($this->database !== 0) {
            $this->redis->select($this->database);
        }
        foreach ($this->options as $name => $value) {
            $this->redis->setOption(self::names()[$name], $value);
        }
    }

    /** @return array<string, int> all options of this version of phpredis, except that of clusters */
    private static function names(): array
    {
        $isOption = fn (string $name) => str_starts_with($name, 'OPT_') && !str_contains($name, 'FAILOVER');
        $constants = (new \ReflectionClass(\Redis::class))->getConstants();
        return array_filter($constants, $isOption, ARRAY_FILTER_USE_KEY);
    }
}
