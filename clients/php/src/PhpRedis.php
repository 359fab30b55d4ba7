<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * A `Redis` of phpredis.
 *
 * After a lost connection it can fail for good. Then only `connect()` mends it, which forgets all
 * settings, so they are noted at first and before each command.
 *
 * @internal
 */
final class PhpRedis implements Client
{
    /** The options that a command may change for its time. */
    private const READ_TIMEOUT = \Redis::OPT_READ_TIMEOUT;
    private const MAX_RETRIES = \Redis::OPT_MAX_RETRIES;

    private bool $isOpen = true;
    private readonly string $host;
    private readonly int $port;
    private readonly float $connectTimeout;
    private readonly ?string $persistentId;
    private readonly \SensitiveParameterValue $login;
    private int $database = 0;
    /** @var array<int, mixed> */
    private array $options = [];
    /** @var list<int> */
    private static array $names;

    public function __construct(private readonly \Redis $redis, private readonly float $longestConnect)
    {
        $host = $redis->getHost();
        if ($host === false || $host === '') {
            throw new \InvalidArgumentException('redis must be connected');
        }
        self::$names ??= self::names();
        [$this->host, $this->port] = [$host, max(0, (int) $redis->getPort())];
        $this->connectTimeout = (float) $redis->getTimeout();
        $this->persistentId = $redis->getPersistentID() ?: null;
        $this->login = new \SensitiveParameterValue($redis->getAuth() ?: null);
        if ($redis->isConnected()) {
            $this->note();
        }
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
        // The program may have met the end of the connection.
        if ($this->isOpen && $this->redis->isConnected()) {
            return;
        }
        // A connection without its settings isn't used, nor are they noted.
        $this->isOpen = false;
        $left = max(0.001, min($until - Clock::now(), $this->connectTimeout ?: INF, $this->longestConnect));
        try {
            $this->connect($left);
        } catch (\RedisException $thrown) {
            $this->close();
            throw ErrorReply::of($thrown->getMessage()) ?? self::failure($thrown, $this->name());
        }
        $this->isOpen = true;
    }

    public function exchange(
        string $key,
        #[\SensitiveParameter] array $words,
        Call $call,
        float $until,
    ): mixed {
        $redis = $this->redis;
        if ($redis->getMode() !== \Redis::ATOMIC) {
            throw new \LogicException('redis is in a MULTI or a pipeline, which would delay the lock');
        }
        $this->note();
        $redis->clearLastError();
        try {
            $redis->setOption(self::READ_TIMEOUT, max(0.001, $until - Clock::now()));
            $redis->setOption(self::MAX_RETRIES, 0);
            $reply = $redis->rawCommand(...$words);
        } catch (\RedisException $thrown) {
            $reply = ErrorReply::of($thrown->getMessage()) ?? throw self::failure($thrown, $this->name());
        } finally {
            // They fail after the connection has failed, and connect() sets them then.
            $redis->setOption(self::READ_TIMEOUT, $this->options[self::READ_TIMEOUT]);
            $redis->setOption(self::MAX_RETRIES, $this->options[self::MAX_RETRIES]);
        }
        if ($reply instanceof ErrorReply) {
            throw $reply;
        }
        return self::result($reply, $redis->getLastError());
    }

    /** Returns a reply of phpredis, which has one value for nil, for an error and for false. */
    public static function result(mixed $reply, ?string $error): mixed
    {
        if ($reply === true) {
            throw new Queued();
        }
        if ($reply === false && $error !== null) {
            throw new ErrorReply($error);
        }
        return $reply === false || $reply === [] ? null : $reply;
    }

    public static function failure(\Exception $thrown, string $name): Unavailable
    {
        $isLate = preg_match('/read socket|read error|timed out/i', $thrown->getMessage()) === 1;
        $cause = trim($thrown->getMessage());
        return new Unavailable($isLate ? "no answer from $name in time" : "$name: $cause", $isLate);
    }

    public function close(): void
    {
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
    }

    public function abandon(): void
    {
        if ($this->isOpen && $this->redis->isConnected()) {
            $this->note();
        }
        $this->close();
    }

    public function findsServers(): bool
    {
        return false;
    }

    public function name(): string
    {
        return $this->port > 0 ? "$this->host:$this->port" : $this->host;
    }

    /** Notes the settings that the program may have changed. */
    private function note(): void
    {
        $this->database = $this->redis->getDbNum();
        foreach (self::$names as $name) {
            $this->options[$name] = $this->redis->getOption($name);
        }
        // No timeout is set then, and 0 would set one.
        $this->options[self::READ_TIMEOUT] =
            $this->options[self::READ_TIMEOUT] ?: (float) ini_get('default_socket_timeout');
    }

    private function connect(float $seconds): void
    {
        $where = [$this->host, $this->port, $seconds, $this->persistentId, 0, $seconds];
        $this->persistentId === null ? $this->redis->connect(...$where) : $this->redis->pconnect(...$where);
        $login = $this->login->getValue();
        if ($login !== null) {
            $this->redis->auth($login);
        }
        if ($this->database !== 0) {
            $this->redis->select($this->database);
        }
        foreach ($this->options as $name => $value) {
            $this->redis->setOption($name, $value);
        }
    }

    /** @return list<int> all options of this version of phpredis, except that of clusters */
    private static function names(): array
    {
        $isOption = fn (string $name) => str_starts_with($name, 'OPT_') && !str_contains($name, 'FAILOVER');
        $constants = (new \ReflectionClass(\Redis::class))->getConstants();
        return array_values(array_filter($constants, $isOption, ARRAY_FILTER_USE_KEY));
    }
}
