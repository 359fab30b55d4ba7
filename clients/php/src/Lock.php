<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * One owner of a lock. Acquired again while it is held, it counts its holds. Nothing goes on in the background: what
 * became of the lock is known when it is asked for.
 */
final class Lock
{
    /** How long a wait stays on one connection: between two, signal handlers run, and a dead one is noticed. */
    private const SLICE = 2.0;

    /** By how much the server may be late when a wait's time is over. */
    private const GRACE = 0.25;

    private int $holds = 0;
    private ?int $fence = null;
    private bool $lost = false;
    private float $until = 0.0;

    /**
     * @internal Locks makes them
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
     * The fence; null where the lock wasn't to be had in time.
     *
     * @param ?float $wait so many seconds at most; 0 tries once; null waits for ever
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
     * Takes one hold off, and with the last one releases the lock. False: it was lost, or wasn't held.
     *
     * @throws \RedisException|\RedisClusterException where the server couldn't be told until the lease was over
     */
    public function release(): bool
    {
        if ($this->holds === 0) {
            return false;
        }
        if (!$this->isHeld()) {
            // Some of its keys may be held still.
            $this->loses();
            $this->leave();
            return false;
        }
        $holds = --$this->holds;
        [$reply, $again] = $this->repeat($this->until(), 'RELEASE', $this->keys, ['HOLDS', $holds]);
        // Where an answer was lost, that one may have told of the release.
        if ($this->tellsOfAll($reply) || ($again && $holds === 0 && !$this->session)) {
            return true;
        }
        $this->loses();
        return false;
    }

    /**
     * Sets what is left of the lease, in seconds. False: the lock isn't held.
     *
     * @throws \RedisException|\RedisClusterException where the server couldn't be told until the lease was over
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
     * The seconds that are left of the lease, by the server; 0 where the lock isn't held.
     *
     * @throws \RedisException|\RedisClusterException
     */
    public function left(): float
    {
        $ask = fn (string $key) => $this->repeat(Clock::now() + Connection::ANSWER, 'CHECK', [$key], [])[0];
        return min(array_map($ask, $this->keys)) / 1000;
    }

    /** The number of the latest grant, greater than that of each one before it; null without one. */
    public function fence(): ?int
    {
        return $this->fence;
    }

    /**
     * Whether the latest grant was lost, as far as is known without asking: the server said so, or the lease is over
     * by this machine's monotonic clock. The lease of a session is the server's to renew, so only the server tells.
     */
    public function isLost(): bool
    {
        return $this->lost || ($this->holds > 0 && Clock::now() >= $this->until());
    }

    private function isHeld(): bool
    {
        return $this->holds > 0 && !$this->isLost();
    }

    /** When the lock is lost, if nothing is done. */
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
        // A process that stood still may read of a grant that is over. So what came late is asked for once more,
        // without waiting; the answer to that may be slow, where the way is long.
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
                // A wait isn't tied to its connection: the place would go with it.
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
        // What was held may have been lost meanwhile.
        $this->holds = $fence === $this->fence ? $holds : 1;
        $this->lost = false;
        $this->until = $sent + $this->lease;
        return $this->fence = $fence;
    }

    /** Leaves nothing behind: after the first command nothing waits that could be granted. */
    private function giveUp(int $holds): void
    {
        $this->holds = $holds;
        try {
            $this->connection->ask('CANCEL', [$this->keys[0]], [$this->token]);
            $this->connection->ask('RELEASE', $this->keys, [$this->token, 'HOLDS', $holds]);
        } catch (Refused|\RedisException|\RedisClusterException) {
        }
    }

    /** Lets go of what is held. Where the server can't be told, the lease ends it. */
    private function leave(): void
    {
        $this->holds = max(0, $this->holds - 1);
        try {
            $this->connection->ask('RELEASE', $this->keys, [$this->token, 'HOLDS', $this->holds]);
        } catch (Refused|\RedisException|\RedisClusterException) {
        }
    }

    /**
     * Sends a command until it is answered or the time is over.
     *
     * @param non-empty-list<string> $keys
     * @param list<string|int> $words
     * @return array{mixed, bool, float} the answer; whether it was sent before; when it was sent
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
