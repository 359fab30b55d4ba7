<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * A grant of a lock. Whoever has it may extend or release it. All times are in seconds.
 *
 * Nothing runs in the background, so the lease isn't renewed, and a call finds a loss. A grant that is
 * dropped while it is held is released, and reported as lost.
 */
final class Grant
{
    private const HELD = 'held';
    private const LOST = 'lost';
    private const LEFT = 'released';

    /** @var non-empty-list<string> */
    public readonly array $keys;
    private string $state = self::HELD;
    private float $deadline = -INF;
    /** The server keeps a lock with `atLeast` until then. */
    private readonly float $staysUntil;
    /** The process that holds the lock. */
    private readonly int $process;

    /**
     * @internal Lock::acquire() returns it.
     * @param Commands $lent sends on the connection to which a session is tied
     * @param Call $call the latest command, which set the lease and tied the session
     */
    public function __construct(
        private readonly Commands $commands,
        private readonly Commands $lent,
        private readonly Options $options,
        private readonly Call $call,
        /** The fencing token, which is greater than that of each grant before. */
        public readonly int $fence,
        float $askedAt,
        /** @internal True if a command that asked for this grant may still arrive. */
        public readonly bool $isUnclear,
    ) {
        $this->keys = $options->keys;
        $this->staysUntil = Clock::now() + $options->atLeast;
        $this->process = getmypid();
        $this->prolong($options->lease, $askedAt);
        $commands->held[$this] = true;
    }

    /** Returns what names this grant to the server. Who knows it can release the lock. */
    public function token(): string
    {
        return $this->call->token();
    }

    /**
     * Returns true if the lock was lost, without asking the server: the server said so, or a `margin`
     * before the end of the lease by the local clock. A session is lost if the server says so, or if the
     * connection of the program's client was closed here after an outage.
     */
    public function isLost(): bool
    {
        return $this->state() === self::LOST;
    }

    /** Returns the seconds until the lock counts as lost, or 0 if it isn't held; INF for a session. */
    public function left(): float
    {
        return $this->state() === self::HELD ? max(0.0, $this->deadline - Clock::now()) : 0.0;
    }

    /**
     * Asks the server whether this grant holds all its keys now.
     *
     * @throws Unavailable|ServerError|ModuleMissing
     */
    public function owned(): bool
    {
        $call = new Call($this->token());
        return min($this->commands->ofEachKey($this->keys, $call, 'LOCK.CHECK', $this->token())) > 0;
    }

    /**
     * Lets the lease end in so many seconds, or later. Returns false if the lock was lost.
     *
     * @throws \InvalidArgumentException|Unavailable|ServerError|ModuleMissing the lease stays
     */
    public function extend(float $lease): bool
    {
        $this->options->extension($lease);
        if ($this->state() !== self::HELD) {
            return false;
        }
        $askedAt = $this->lent->extend($this->options, $this->call, $lease);
        if ($askedAt === null) {
            $this->lose();
            return false;
        }
        $this->prolong($lease, $askedAt);
        return true;
    }

    /**
     * Releases the lock. Returns false if it had been lost.
     *
     * @throws NotHeld if it was released before
     * @throws Unavailable|ServerError|ModuleMissing in any case the program holds it no more
     */
    public function release(): bool
    {
        return $this->releaseUntil(Clock::now() + $this->commands->timeout);
    }

    /**
     * Hands the lock on: this object doesn't hold it any more, and Locks::adopt() makes the next one.
     *
     * @throws NotHeld|\LogicException the latter for a session, which ends with its connection
     */
    public function detach(): void
    {
        if ($this->options->session) {
            throw new \LogicException("a session ends with its connection, so it can't be detached");
        }
        if ($this->state() !== self::HELD) {
            throw new NotHeld("the lock isn't held");
        }
        $this->end(self::LEFT);
    }

    /** @internal */
    public function releaseUntil(float $until): bool
    {
        $before = $this->state();
        if ($before === self::LEFT) {
            throw new NotHeld("the lock isn't held");
        }
        $wasLost = $before === self::LOST;
        $this->end(self::LEFT);
        try {
            $isHeld = $this->sendRelease($until);
        } catch (\Throwable $thrown) {
            $this->leave();
            return $wasLost && $thrown instanceof LockException ? false : throw $thrown;
        } finally {
            // Only this session has its connection.
            $this->lent === $this->commands || $this->lent->connection->close();
        }
        if (!$isHeld && !$wasLost) {
            $this->commands->tell('lost', $this);
        }
        return $isHeld && !$wasLost;
    }

    /**
     * Releases the lock at the end of the program. Returns false if it isn't held.
     *
     * @internal
     */
    public function releaseAtEnd(): bool
    {
        $isHeld = $this->state === self::HELD && $this->process === getmypid();
        if ($isHeld) {
            $this->end(self::LEFT);
            $this->leave();
        }
        return $isHeld;
    }

    public function __destruct()
    {
        // First, because the handler of a signal may throw after each of them.
        if ($this->releaseAtEnd()) {
            $keys = json_encode($this->keys);
            error_log("redis-lock: a grant of $keys was dropped without a release");
            $this->commands->tell('lost', $this);
        }
    }

    private function __clone()
    {
    }

    /** Moves the deadline. The lease counts from the request, so the server ends it later. */
    private function prolong(float $lease, float $askedAt): void
    {
        $this->deadline = $this->options->session
            ? INF
            : max($this->deadline, $askedAt + $lease - $this->options->margin);
    }

    /** Returns the state now. A process that was forked holds nothing. */
    private function state(): string
    {
        if ($this->process !== getmypid()) {
            return self::LEFT;
        }
        $isOver = $this->options->session
            ? $this->lent->connection->hasClosed($this->call)
            : Clock::now() >= $this->deadline;
        if ($this->state === self::HELD && $isOver) {
            $this->lose();
        }
        return $this->state;
    }

    private function lose(): void
    {
        $this->end(self::LOST);
        $this->commands->tell('lost', $this);
    }

    private function end(string $state): void
    {
        $this->state = $state;
        unset($this->commands->held[$this]);
    }

    /** Returns false if the server says that the grant had ended. */
    private function sendRelease(float $until): bool
    {
        $call = new Call($this->token());
        return $this->lent->retry(function (float $end) use ($call): bool {
            $count = $this->lent->ask($this->lastWords(), $call, $end);
            // If a reply was lost, the command before may have released the lock.
            $mayHave = $call->unanswered > 0 && Clock::now() < $this->deadline;
            return $count === count($this->keys) || $mayHave;
        }, $until);
    }

    private function leave(): void
    {
        // The server renews a session as long as its connection seems to be open.
        $end = max(Clock::now(), $this->deadline) + $this->options->margin;
        $this->commands->leave($this->lastWords(), $end);
    }

    /** @return non-empty-list<string|int> */
    private function lastWords(): array
    {
        $rest = $this->staysUntil - Clock::now();
        return $rest > 0
            ? $this->options->releaseAfter($this->call, $rest)
            : $this->options->release($this->call, $this->isUnclear ? $this->options->longestTrace : 0.0);
    }
}
