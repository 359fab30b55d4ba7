<?php

declare(strict_types=1);

namespace RedisLock;

/** A lock: keys and options. It has no state, so several parts of a program may share it. */
final class Lock
{
    /** @var non-empty-list<string> */
    public readonly array $keys;

    /** @internal Use Locks::lock(). */
    public function __construct(private readonly Commands $commands, private readonly Options $options)
    {
        $this->keys = $options->keys;
    }

    /**
     * Returns a grant, or null if another client had the lock until the time was over.
     *
     * @param ?float $wait seconds; 0 tries once, INF sets no limit; null: the option `wait`
     * @throws \InvalidArgumentException|Unavailable|Cancelled|Deadlock|NotReplicated|ModuleMissing
     * @throws ServerError
     */
    public function acquire(?float $wait = null): ?Grant
    {
        return $this->acquireAs(null, $wait);
    }

    /** Tries once. Returns a grant, or null if another client has the lock. Throws like acquire(). */
    public function tryAcquire(): ?Grant
    {
        return $this->acquire(0.0);
    }

    /**
     * Acquires the lock, calls the function with the grant, and releases the lock, whatever happens.
     *
     * @template T
     * @param callable(Grant): T $work
     * @return T
     * @throws NotAcquired|LockLost and what acquire() throws
     */
    public function using(callable $work, ?float $wait = null): mixed
    {
        $grant = $this->acquire($wait) ?? throw new NotAcquired('another client had the lock all the time');
        return $this->during($grant, $work);
    }

    /**
     * Calls the function with a grant, and releases it.
     *
     * @internal
     */
    public function during(Grant $grant, callable $work): mixed
    {
        try {
            $result = $work($grant);
        } finally {
            $isHeld = $this->endOf($grant);
        }
        return $isHeld ? $result : throw new LockLost('the lock was lost before its release');
    }

    /**
     * Asks the server whether any owner holds one of the keys.
     *
     * @throws Unavailable|ServerError|ModuleMissing
     */
    public function isLocked(): bool
    {
        return $this->shownHolders() !== [];
    }

    /**
     * Acquires with a token that may hold the lock already, as a reader, and keeps it.
     *
     * @internal
     * @param ?string $token null: drawn for this acquire
     */
    public function acquireAs(#[\SensitiveParameter] ?string $token, ?float $wait): ?Grant
    {
        $wait ??= $this->options->wait;
        Options::limit('wait', $wait);
        $began = Clock::now();
        $acquire = new Acquire($this->commands, $this->options, $token, $wait);
        [$grant, $outcome] = [null, 'cancelled'];
        try {
            $grant = $acquire->run();
            $outcome = $grant === null ? 'not acquired' : 'granted';
        } catch (LockException $thrown) {
            $outcome = $thrown instanceof Cancelled ? 'cancelled' : 'failed';
            throw $thrown;
        } finally {
            if ($acquire->hasWaited || $grant === null) {
                $this->commands->tell('waited', $this, Clock::now() - $began, $outcome);
            }
        }
        if ($grant !== null) {
            try {
                $this->commands->tell('granted', $grant);
            } catch (\Throwable $cut) {
                // The handler of a signal threw, and the trace keeps the grant from being dropped.
                $grant->releaseAtEnd();
                throw $cut;
            }
        }
        return $grant;
    }

    /**
     * Returns a grant that another process acquired, or null if it has ended.
     *
     * @internal Use Locks::adopt().
     */
    public function adopt(#[\SensitiveParameter] string $token, int $fence): ?Grant
    {
        Options::token($token);
        $holder = $this->holder($token, $fence);
        $askedAt = $this->commands->extend($this->options, $holder->call, $this->options->lease);
        return $askedAt === null ? null : new Grant($holder, $askedAt);
    }

    /**
     * Returns what holds the lock with a token, of this process or of another one.
     *
     * @internal
     * @param mixed ...$more true if a command that asked for the lock may still arrive, and the data
     */
    public function holder(#[\SensitiveParameter] string $token, int $fence, mixed ...$more): Holder
    {
        [$commands, $call] = [$this->commands, new Call($token)];
        return new Holder($commands, $commands, $this->options, $call, $fence, ...$more);
    }

    /**
     * Returns the holders of the only key.
     *
     * @internal
     * @return list<Holder>
     */
    public function holders(): array
    {
        return array_map(function (array $shown): Holder {
            if (($shown['token'] ?? '') === '') {
                throw new ServerError("NOPERM the server hides holders from users who can't write");
            }
            return $this->holder($shown['token'], $shown['fence'], false, $shown['data']);
        }, $this->shownHolders());
    }

    /** @return list<array<string, mixed>> the holders of all keys, as LOCK.INFO shows them */
    private function shownHolders(): array
    {
        $named = fn (array $words) => array_column(array_chunk($words, 2), 1, 0);
        $of = fn (?array $info) => $info === null ? [] : $named($info)['holders'];
        $infos = $this->commands->ofEachKey($this->keys, new Call(), 'LOCK.INFO', 'WAITERS', '0');
        return array_map($named, array_merge(...array_map($of, $infos)));
    }

    /** Releases a grant at the end of using(). Returns false if the lock was lost. */
    private function endOf(Grant $grant): bool
    {
        try {
            return $grant->release();
        } catch (NotHeld) {
            // The work has released it by itself.
            return true;
        } catch (LockException $fault) {
            $this->commands->report($fault);
            return true;
        }
    }
}
