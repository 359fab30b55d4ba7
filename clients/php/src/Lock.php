<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * One owner of a lock. Acquiring it again while it is held adds a hold. Nothing runs in the
 * background, so a loss is detected only by a call.
 */
final class Lock
{
    /**
     * Longest time in seconds of a wait on one connection. Between two connections, signal handlers
     * run, and a dead connection is noticed.
     */
    private const SLICE = 2.0;

    /** Longest delay in seconds of the server's reply when a wait ends. */
    private const GRACE = 0.25;

    private int $holds = 0;
    private ?int $fence = null;
    private bool $lost = false;
    private float $until = 0.0;

    /**
     * @internal Use Locks::lock()
     * @param non-empty-list<string> $keys
     */
    public function __construct(
        private readonly Connection $connection,
        private readonly array $keys,
        public readonly string $token,
        private readonly float $lease,
        private readonly bool $shared,
        private readonly ?int $limit,
        private readonly ?int $permits,
        private readonly bool $session,
        private readonly float $keep,
    ) {
    }

    /**
     * Acquires the lock and returns the fence, or null if it wasn't granted in time.
     *
     * @param ?float $wait time limit in seconds; 0 tries once; null sets no limit
     * @throws Cancelled|Deadlock|\RedisException|\RedisClusterException
     */
    public function acquire(?float $wait = null): ?int
    {
        $holds = $this->isHeld() ? $this->holds + 1 : 1;
        try {
            return $this->wait($wait, $holds);
        } catch (Refused $refused) {
            throw $refused->reason;
        } catch (\Throwable $thrown) {
            $this->giveUp($holds - 1);
            throw $thrown;
        }
    }

    /**
     * Acquires the lock, calls the function with the fence, and releases the lock.
     *
     * @template T
     * @param callable(int): T $work
     * @return T
     * @throws NotAcquired|LockLost|Cancelled|Deadlock|\RedisException|\RedisClusterException
     */
    public function using(callable $work, ?float $wait = null): mixed
    {
        $fence = $this->acquire($wait) ?? throw new NotAcquired("not within $wait s");
        try {
            $result = $work($fence);
        } catch (\Throwable $thrown) {
            $this->leave();
            throw $thrown;
        }
        return $this->release() ? $result : throw new LockLost('the lock was lost before it was released');
    }

    /**
     * Removes one hold, and releases the lock with the last one. Returns false if the lock was lost
     * or wasn't held.
     *
     * @throws \RedisException|\RedisClusterException if the server couldn't be reached until the
     *     lease ended
     */
    public function release(): bool
    {
        if ($this->holds === 0) {
            return false;
        }
        if (!$this->isHeld()) {
            // Some of the keys may still be held.
            $this->loses();
            $this->leave();
            return false;
        }
        $holds = --$this->holds;
        [$reply, $again] = $this->repeat($this->until(), 'RELEASE', $this->keys, ['HOLDS', $holds]);
        // If a reply was lost, the command before may have released the lock.
        if ($this->tellsOfAll($reply) || ($again && $holds === 0 && !$this->session)) {
            return true;
        }
        $this->loses();
        return false;
    }

    /**
     * Sets the remaining lease, in seconds. Returns false if the lock isn't held.
     *
     * @throws \RedisException|\RedisClusterException if the server couldn't be reached until the
     *     lease ended
     */
    public function extend(float $lease): bool
    {
        if (!$this->isHeld()) {
            return false;
        }
        $words = ['PX', Clock::milliseconds($lease), ...($this->session ? ['SESSION'] : [])];
        [$reply, , $sent] = $this->repeat($this->until(), 'EXTEND', $this->keys, $words);
        if (!$this->tellsOfAll($reply)) {
            $this->loses();
            return false;
        }
        $this->until = $sent + $lease;
        return true;
    }

    /**
     * Returns the remaining lease on the server in seconds, or 0 if the lock isn't held.
     *
     * @throws \RedisException|\RedisClusterException
     */
    public function left(): float
    {
        $ask = fn (string $key) => $this->repeat(Clock::now() + Connection::ANSWER, 'CHECK', [$key], [])[0];
        return min(array_map($ask, $this->keys)) / 1000;
    }

    /** Returns the fence of the latest grant, greater than all earlier fences, or null. */
    public function fence(): ?int
    {
        return $this->fence;
    }

    /**
     * Returns true if the latest grant is known to be lost, without asking the server. Either the
     * server said so, or the lease has ended on the local monotonic clock. The server renews the
     * lease of a session, so only the server reports its loss.
     */
    public function isLost(): bool
    {
        return $this->lost || ($this->holds > 0 && Clock::now() >= $this->until());
    }

    private function isHeld(): bool
    {
        return $this->holds > 0 && !$this->isLost();
    }

    /** Returns the end of the lease. For a session it is a lease from now. */
    private function until(): float
    {
        return $this->session ? Clock::now() + $this->lease : $this->until;
    }

    private function loses(): void
    {
        $this->holds = 0;
        $this->lost = true;
    }

    private function wait(?float $wait, int $holds): ?int
    {
        $end = Clock::now() + ($wait === 0.0 ? Connection::ANSWER : $wait ?? INF);
        $pace = new Pace();
        // A stopped process may read a grant that is over. So after a slow reply the lock is
        // requested once more, without waiting. That reply may be slow if the network is.
        $soon = $this->lease / 10;
        $waits = $wait !== 0.0;
        for (;;) {
            $sent = Clock::now();
            $failure = $grant = null;
            try {
                $grant = $waits ? $this->waitUntil($end, $holds) : $this->tryOnce($holds);
            } catch (\RedisException|\RedisClusterException $failure) {
            }
            if (is_array($grant) && count($grant) === 2) {
                // A wait isn't tied to its connection, because the place would end with it.
                if (Clock::now() - $sent < $soon && !($waits && $this->session)) {
                    return $this->note($grant[1], $sent, $holds);
                }
                [$soon, $waits] = [$this->lease, false];
                continue;
            }
            $isOver = Clock::now() >= $end;
            if ($isOver && $failure !== null) {
                throw $failure;
            }
            if ($isOver || ($failure === null && $wait === 0.0)) {
                return null;
            }
            $waits = $wait !== 0.0;
            $pace->sleep($sent, $end);
        }
    }

    private function waitUntil(float $end, int $holds): mixed
    {
        $words = [...$this->words($holds), 'KEEP', Clock::milliseconds($this->keep)];
        $left = max(0.0, $end - Clock::now());
        if ($left !== INF) {
            array_push($words, 'BLOCK', Clock::milliseconds($left));
        }
        return $this->connection->ask('WAIT', $this->keys, $words, min($left, self::SLICE) + self::GRACE);
    }

    private function tryOnce(int $holds): mixed
    {
        $words = [...$this->words($holds), ...($this->session ? ['SESSION'] : [])];
        return $this->connection->ask('ACQUIRE', $this->keys, $words);
    }

    /** @return list<string|int> */
    private function words(int $holds): array
    {
        return [
            $this->token, 'PX', Clock::milliseconds($this->lease), 'HOLDS', $holds,
            ...($this->shared ? ['SHARED'] : []),
            ...($this->limit === null ? [] : ['LIMIT', $this->limit]),
            ...($this->permits === null ? [] : ['PERMITS', $this->permits]),
        ];
    }

    private function note(int $fence, float $sent, int $holds): int
    {
        // The grant before may have been lost meanwhile.
        $this->holds = $fence === $this->fence ? $holds : 1;
        $this->lost = false;
        $this->until = $sent + $this->lease;
        return $this->fence = $fence;
    }

    /** Cancels a wait, and releases all but $holds. CANCEL goes first, so no grant can follow. */
    private function giveUp(int $holds): void
    {
        $this->holds = $holds;
        try {
            $this->connection->ask('CANCEL', [$this->keys[0]], [$this->token]);
            $this->connection->ask('RELEASE', $this->keys, [$this->token, 'HOLDS', $holds]);
        } catch (Refused|\RedisException|\RedisClusterException) {
        }
    }

    /** Releases one hold with a single try. If that fails, the lock ends with its lease. */
    private function leave(): void
    {
        $this->holds = max(0, $this->holds - 1);
        try {
            $this->connection->ask('RELEASE', $this->keys, [$this->token, 'HOLDS', $this->holds]);
        } catch (Refused|\RedisException|\RedisClusterException) {
        }
    }

    /**
     * Sends a command until it gets a reply or the time is over.
     *
     * @param non-empty-list<string> $keys
     * @param list<string|int> $words
     * @return array{mixed, bool, float} the reply; true if it was sent before; the time it was sent
     */
    private function repeat(float $until, string $name, array $keys, array $words): array
    {
        $pace = new Pace();
        for ($again = false; ; $again = true) {
            $sent = Clock::now();
            try {
                return [$this->connection->ask($name, $keys, [$this->token, ...$words]), $again, $sent];
            } catch (Refused $refused) {
                throw $refused->reason;
            } catch (\RedisException|\RedisClusterException $failure) {
                if (Clock::now() >= $until) {
                    throw $failure;
                }
                $pace->sleep($sent, $until);
            }
        }
    }

    private function tellsOfAll(mixed $reply): bool
    {
        return $reply === count($this->keys);
    }
}
