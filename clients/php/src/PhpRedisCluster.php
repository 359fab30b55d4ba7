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
    /** @var array<string, true> keys whose slot has a node. Without one `rawCommand()` crashes. */
    private array $served = [];
    /** The key of the next command. */
    private string $key = '';

    public function __construct(private readonly \RedisCluster $cluster) {}

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
        if ($this->cluster->getMode() !== \Redis::ATOMIC) {
            throw new \LogicException('redis is in a MULTI, which would delay the lock');
        }
        if (!isset($this->served[$key])) {
            // If a slot has no node, a cluster that is made anew may find one.
            [$served, $this->served] = [$this->served, []];
            $this->cluster->exists($key);
            // Only the latest keys, so that their number has a limit.
            $this->served = [$key => true] + array_slice($served, 0, 999, true);
        }
        $this->key = $key;
    }

    public function exchange(#[\SensitiveParameter] array $words, Call $call, float $until): mixed
    {
        $began = Clock::now();
        try {
            return $this->send($this->prefix() . $this->key, $words);
        } catch (\RedisClusterException|\RedisException $failure) {
            $this->throwIfLate($failure, $began);
            if ($until - Clock::now() < $this->patience()) {
                throw $failure;
            }
        }
        return $this->follow($words, $call);
    }

    public function close(): bool
    {
        try {
            $this->cluster->close();
        } catch (\RedisClusterException|\RedisException) {
            // It is closed.
        }
        return $this->served !== [];
    }

    public function name(): string
    {
        return 'the cluster';
    }

    /** Sends a command again. The one before may have been executed. */
    private function follow(#[\SensitiveParameter] array $words, Call $call): mixed
    {
        $began = Clock::now();
        try {
            // It follows MOVED, and notes the new node of the slot.
            $this->cluster->exists($this->key);
            $call->unanswered++;
            return $this->send($this->prefix() . $this->key, $words);
        } catch (\RedisClusterException|\RedisException $failure) {
            $this->throwIfLate($failure, $began);
        }
        // Only the node to which the slot moves executes a command after ASKING.
        foreach ($this->cluster->_masters() as $node) {
            $began = Clock::now();
            try {
                $this->cluster->rawCommand($node, 'ASKING');
                $call->unanswered++;
                return $this->send($node, $words);
            } catch (\RedisClusterException|\RedisException $refusal) {
                $this->throwIfLate($refusal, $began);
            }
        }
        throw $failure;
    }

    /**
     * Throws a failure that a late reply may have caused: it takes its time, unlike a redirection. The
     * connection must be closed, because the next command would read that reply.
     */
    private function throwIfLate(\RedisClusterException|\RedisException $failure, float $began): void
    {
        if (Clock::now() - $began >= 0.9 * $this->patience()) {
            throw $failure;
        }
    }

    /** @param string|array{string, int} $node the key, or the address of a node */
    private function send(string|array $node, #[\SensitiveParameter] array $words): mixed
    {
        $this->cluster->clearLastError();
        $reply = $this->cluster->rawCommand($node, ...$words);
        return PhpRedis::result($reply, $this->cluster->getLastError());
    }
}
