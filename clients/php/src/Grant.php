<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * A grant of a lock. Whoever has it may extend or release it. All times are in seconds.
 *
 * Nothing runs in the background, so the lease isn't renewed, and a call finds a loss. A grant that is
 * dropped while it is held is released, and reported as lost.
 */
final class Grant implements \JsonSerializable
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
    private readonly \SensitiveParameterValue $token;
    /** The command that set the lease, and tied a session to its connection. */
    private Call $latest;
    /** The process that holds the lock. */
    private readonly int $process;

    /**
     * @internal Lock::acquire() returns it.
     * @param \WeakMap<Grant, true> $held
     */
    public function __construct(
        private readonly Commands $commands,
        private readonly Options $options,
        private readonly \WeakMap $held,
        Call $call,
        /** The fencing token, which is greater than that of each grant before. */
        public readonly int $fence,
        float $askedAt,
        /** @internal True if a command that asked for this grant may still arrive. */
        public readonly bool $isUnclear,
    ) {
        $this->keys = $options->keys;
        $this->staysUntil = Clock::now() + $options->atLeast;
        $this->token = new \SensitiveParameterValue($call->token());
        $this->process = getmypid();
        $this->prolong($call, $options->lease, $askedAt);
        $held[$this] = true;
    }

    /** Returns what names this grant to the server. Who knows it can release the lock. */
    public function token(): string
    {
        return $this->token->getValue();
    }

    /**
     * Returns true if the lock was lost, without asking the server: the server said so, or a `margin`
     * before the end of the lease by the local clock. A session is lost if the server says so, or if the
     * connection of the program's client was closed here after an outage.
     */
    public function isLost(): bool
    {
        if ($this->state === self::HELD && $this->isMine() && $this->isOver()) {
            $this->lose();
        }
        return $this->state === self::LOST;
    }

    /** Returns the seconds until the lock counts as lost, or 0 if it isn't held; INF for a session. */
    public function left(): float
    {
        return $this->isHeld() ? max(0.0, $this->deadline - Clock::now()) : 0.0;
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
        if (!$this->isHeld()) {
            return false;
        }
        $call = new Call($this->token());
        $askedAt = $this->commands->extend($this->options, $call, $lease);
        if ($askedAt === null) {
            $this->lose();
            return false;
        }
        $this->prolong($call, $lease, $askedAt);
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
        if (!$this->isMine() || !$this->end(self::LEFT)) {
            throw new NotHeld("the lock isn't held");
        }
    }

    /** @internal */
    public function releaseUntil(float $until): bool
    {
        $wasLost = $this->isLost();
        if (!$this->isMine() || $this->state === self::LEFT) {
            throw new NotHeld("the lock isn't held");
        }
        $call = new Call($this->token());
        try {
            $this->end(self::LEFT);
            $this->state = self::LEFT;
            $isHeld = $this->commands->retry(function (float $end) use ($call): bool {
                $count = $this->commands->ask($this->keys[0], $this->lastWords(), $call, $end);
                // If a reply was lost, the command before may have released the lock.
                $mayHave = $call->unanswered > 0 && Clock::now() < $this->deadline;
                return $count === count($this->keys) || $mayHave;
            }, $until);
        } catch (\Throwable $thrown) {
            $this->leave($call);
            if ($wasLost && $thrown instanceof LockException) {
                return false;
            }
            throw $thrown;
        }
        if (!$isHeld && !$wasLost) {
            $this->commands->tell('lost', $this);
        }
        return $isHeld && !$wasLost;
    }

    /**
     * Forgets the grant, because its acquire failed and ends it.
     *
     * @internal
     */
    public function abandon(): void
    {
        $this->end(self::LEFT);
    }

    /**
     * Releases the lock at the end of the program.
     *
     * @internal
     */
    public function releaseAtEnd(): void
    {
        if ($this->isMine() && $this->end(self::LEFT)) {
            $this->leave(new Call($this->token()));
        }
    }

    public function __destruct()
    {
        if (!$this->isHeld()) {
            return;
        }
        $keys = json_encode($this->keys);
        error_log("redis-lock: a grant of $keys was dropped without a release");
        // First, because the handler of a signal may throw after each of them.
        $this->releaseAtEnd();
        $this->commands->tell('lost', $this);
    }

    /** @return array<string, mixed> what var_dump() and print_r() show */
    public function __debugInfo(): array
    {
        return $this->jsonSerialize();
    }

    /** @return array<string, mixed> */
    public function jsonSerialize(): array
    {
        return ['keys' => $this->keys, 'state' => $this->state, 'fence' => $this->fence];
    }

    private function __clone()
    {
    }

    /** Moves the deadline. The lease counts from the request, so the server ends it later. */
    private function prolong(Call $call, float $lease, float $askedAt): void
    {
        $this->latest = $call;
        $this->deadline = $this->options->session
            ? INF
            : max($this->deadline, $askedAt + $lease - $this->options->margin);
    }

    private function isOver(): bool
    {
        return $this->options->session
            ? $this->commands->hasClosed($this->latest)
            : Clock::now() >= $this->deadline;
    }

    private function isHeld(): bool
    {
        return !$this->isLost() && $this->state === self::HELD && $this->isMine();
    }

    /** Returns false in a process that was forked since. */
    private function isMine(): bool
    {
        return $this->process === getmypid();
    }

    private function lose(): void
    {
        if ($this->end(self::LOST)) {
            $this->commands->tell('lost', $this);
        }
    }

    /** Returns false if the grant ended before. */
    private function end(string $state): bool
    {
        if ($this->state !== self::HELD) {
            return false;
        }
        $this->state = $state;
        unset($this->held[$this]);
        return true;
    }

    private function leave(Call $call): void
    {
        // The server renews a session as long as its connection seems to be open.
        $end = max(Clock::now(), $this->deadline) + $this->options->margin;
        $this->commands->leave($this->keys[0], $this->lastWords(), $call, $end);
    }

    /** @return non-empty-list<string|int> */
    private function lastWords(): array
    {
        $rest = $this->staysUntil - Clock::now();
        return match (true) {
            $rest > 0 => $this->options->releaseAfter($this->token(), $rest),
            $this->isUnclear => $this->options->leave($this->token(), $this->options->longestTrace),
            default => $this->options->release($this->token()),
        };
    }
}
