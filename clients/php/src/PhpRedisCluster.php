<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * A `RedisCluster` of phpredis. Its read timeout was set when it was made, and its `rawCommand()`
 * follows no redirection.
 *
 * @internal
 */
final class PhpRedisCluster implements Client
{
    /** The most keys that are noted. */
    private const KEYS = 1000;

    /** @var array<string, true> keys whose slot has a node. Without one `rawCommand()` crashes. */
    private array $served = [];
    private bool $lacksSlots = false;

    public function __construct(private readonly \RedisCluster $cluster)
    {
    }

    public function prefix(): string
    {
        return $this->cluster->_prefix('');
    }

    public function patience(): float
    {
        return $this->cluster->getOption(\Redis::OPT_READ_TIMEOUT) ?: INF;
    }

    public function open(string $key, float $until): void
    {
        if (isset($this->served[$key])) {
            return;
        }
        try {
            $this->cluster->exists($key);
            if (count($this->served) >= self::KEYS) {
                $this->served = [];
            }
            $this->served[$key] = true;
        } catch (\RedisClusterException|\RedisException $thrown) {
            $this->lacksSlots = str_contains($thrown->getMessage(), 'not covered');
            throw $this->failure($thrown);
        }
    }

    public function exchange(
        string $key,
        #[\SensitiveParameter] array $words,
        Call $call,
        float $until,
    ): mixed {
        if ($this->cluster->getMode() !== \Redis::ATOMIC) {
            throw new \LogicException('redis is in a MULTI, which would delay the lock');
        }
        $began = Clock::now();
        try {
            return $this->send($key, $words);
        } catch (\RedisClusterException|\RedisException $thrown) {
            $now = Clock::now();
            if ($now - $began >= 0.9 * $this->patience() || $until - $now < $this->patience()) {
                throw new Unavailable('no answer from the cluster in time', true);
            }
        }
        return $this->follow($key, $words, $call);
    }

    public function close(): void
    {
        try {
            $this->cluster->close();
        } catch (\RedisClusterException|\RedisException) {
            // It is closed.
        }
    }

    public function abandon(): void
    {
        $this->close();
    }

    public function findsServers(): bool
    {
        return !$this->lacksSlots;
    }

    public function name(): string
    {
        return 'the cluster';
    }

    /**
     * Sends a command again after a redirection or a failure, which look the same, so the command before
     * may have been executed.
     */
    private function follow(string $key, #[\SensitiveParameter] array $words, Call $call): mixed
    {
        try {
            // It follows MOVED, and notes the new node of the slot.
            $this->cluster->exists(substr($key, strlen($this->prefix())));
            $call->unanswered++;
            return $this->send($key, $words);
        } catch (\RedisClusterException|\RedisException $thrown) {
            $failure = $this->failure($thrown);
        }
        // Only the node to which the slot moves executes a command after ASKING.
        foreach ($this->cluster->_masters() as $node) {
            try {
                $this->cluster->rawCommand($node, 'ASKING');
                $call->unanswered++;
                return $this->send($node, $words);
            } catch (\RedisClusterException|\RedisException) {
                continue;
            }
        }
        throw $failure;
    }

    private function failure(\Exception $thrown): ErrorReply|Unavailable
    {
        return str_contains($thrown->getMessage(), 'CLUSTERDOWN')
            ? new ErrorReply('CLUSTERDOWN the cluster is down')
            : PhpRedis::failure($thrown, $this->name());
    }

    /** @param string|array{string, int} $node the key, or the address of a node */
    private function send(string|array $node, #[\SensitiveParameter] array $words): mixed
    {
        $this->cluster->clearLastError();
        $reply = $this->cluster->rawCommand($node, ...$words);
        return PhpRedis::result($reply, $this->cluster->getLastError());
    }
}
