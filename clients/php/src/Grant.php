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
    /** The fencing token, which is greater than that of each grant before. */
    public readonly int $fence;
    private readonly Commands $commands;
    private readonly Options $options;
    private string $state = self::HELD;
    /** The process that holds the lock. */
    private readonly int $process;

    /** @internal Lock::acquire() returns it. */
    public function __construct(private readonly Holder $holder, float $askedAt)
    {
        [$this->commands, $this->options] = [$holder->commands, $holder->options];
        [$this->keys, $this->fence] = [$this->options->keys, $holder->fence];
        $this->process = getmypid();
        $holder->staysUntil = Clock::now() + $this->options->atLeast;
        $holder->deadline = $this->deadline($this->options->lease, $askedAt);
        $this->commands->held[spl_object_id($this)] = \WeakReference::create($this);
    }

    /**
     * Returns true if a command that asked for this grant may still arrive.
     *
     * @internal
     */
    public function isUnclear(): bool
    {
        return $this->holder->isUnclear;
    }

    /** Returns what names this grant to the server. Who knows it can release the lock. */
    public function token(): string
    {
        return $this->holder->token();
    }

    /**
     * Returns true if the lock was lost, without asking the server: the server said so, or a `margin`
     * before the end of the lease by the local clock. A session is lost if the server says so, or if its
     * connection was closed here after an outage.
     */
    public function isLost(): bool
    {
        return $this->state() === self::LOST;
    }

    /** Returns the seconds until the lock counts as lost, or 0 if it isn't held; INF for a session. */
    public function left(): float
    {
        return $this->state() === self::HELD ? max(0.0, $this->holder->deadline - Clock::now()) : 0.0;
    }

    /**
     * Asks the server whether this grant holds all its keys now.
     *
     * @throws Unavailable|ServerError|ModuleMissing
     */
    public function owned(): bool
    {
        return $this->holder->owns();
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
        $askedAt = $this->holder->lent->extend($this->options, $this->holder->call, $lease);
        if ($askedAt === null) {
            $this->lose();
            return false;
        }
        $this->prolong($lease, $askedAt);
        return true;
    }

    /**
     * Notes a lease that the server was asked for at a time.
     *
     * @internal
     */
    public function prolong(float $lease, float $askedAt): void
    {
        $this->holder->deadline = max($this->holder->deadline, $this->deadline($lease, $askedAt));
    }

    /**
     * Releases the lock. Returns false if it had been lost.
     *
     * @throws NotHeld if it was released before
     * @throws Unavailable|ServerError|ModuleMissing in any case the program no longer holds it
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
            $isHeld = $this->holder->release($until);
        } catch (LockException $thrown) {
            return $wasLost ? false : throw $thrown;
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
            $this->holder->leave();
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
        } elseif ($this->options->session && $this->state() === self::LOST) {
            // The server renews the keys that aren't lost as long as the connection is open.
            $this->holder->lent->connection->hasClosed($this->holder->call) || $this->holder->leave();
        }
    }

    private function __clone() {}

    /** Returns a margin before the end of a lease. It counts from the request, so the server ends it later. */
    private function deadline(float $lease, float $askedAt): float
    {
        // A late command of the acquire sets its own lease, which may be shorter.
        $shortest = $this->holder->isUnclear ? min($lease, $this->options->lease) : $lease;
        return $this->options->session ? INF : $askedAt + $shortest - $this->options->margin;
    }

    /** Returns the state now. A process that was forked holds nothing. */
    private function state(): string
    {
        if ($this->process !== getmypid()) {
            return self::LEFT;
        }
        $isOver = $this->options->session
            ? $this->holder->lent->connection->hasClosed($this->holder->call)
            : Clock::now() >= $this->holder->deadline;
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
        unset($this->commands->held[spl_object_id($this)]);
    }
}
