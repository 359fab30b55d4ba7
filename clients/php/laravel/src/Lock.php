<?php

declare(strict_types=1);

namespace RedisLock\Laravel;

use Illuminate\Cache\Lock as CacheLock;
use Illuminate\Contracts\Cache\LockTimeoutException;
use RedisLock\Clock;
use RedisLock\Grant;
use RedisLock\Holder;
use RedisLock\Lock as Recipe;
use RedisLock\LockLost;
use RedisLock\Locks;
use RedisLock\NotHeld;

/**
 * Laravel's cache lock, whose block() waits in the server's queue. Each acquire draws a token, so two
 * objects with the same owner exclude each other. The owner is the lock's data, by which another
 * process finds the lock.
 */
final class Lock extends CacheLock
{
    /** Lease in seconds of a lock that has no time in Laravel. */
    private const WITHOUT_TIME = 86400.0;

    private readonly Recipe $recipe;
    /** The grant, while a callback runs. */
    private ?Grant $grant = null;
    /** The latest acquire of this object that it hasn't released. */
    private ?Holder $holder = null;

    /**
     * @param string $name
     * @param int|float|numeric-string $seconds 0: without a time, which is a lease of 24 hours here
     * @param ?string $owner random by default
     * @param ?string $connection name of Laravel's connection to the server
     * @throws \InvalidArgumentException
     */
    public function __construct(
        Locks $locks,
        $name,
        $seconds,
        $owner = null,
        private readonly ?string $connection = null,
    ) {
        parent::__construct($name, $seconds, $owner);
        $this->recipe = $locks->lock($name, lease: self::lease($seconds), data: (string) $this->owner);
    }

    public function acquire(): bool
    {
        return $this->keep($this->recipe->tryAcquire());
    }

    public function get($callback = null)
    {
        $grant = $this->recipe->tryAcquire();
        return $grant !== null && is_callable($callback)
            ? $this->during($grant, $callback)
            : $this->keep($grant);
    }

    public function block($seconds, $callback = null)
    {
        $grant = $this->recipe->acquire(self::seconds('wait', $seconds)) ?? throw new LockTimeoutException();
        return is_callable($callback) ? $this->during($grant, $callback) : $this->keep($grant);
    }

    public function release(): bool
    {
        if ($this->grant !== null) {
            return $this->releaseGrant($this->grant);
        }
        $isReleased = $this->held()?->release() ?? false;
        if ($isReleased) {
            $this->holder = null;
        }
        return $isReleased;
    }

    public function forceRelease(): void
    {
        foreach ($this->recipe->holders() as $holder) {
            $holder->release();
        }
    }

    /** Sets what is left of the lease. Returns false if the owner doesn't hold the lock. */
    public function refresh($seconds = null): bool
    {
        [$lease, $askedAt] = [self::lease($seconds ?? $this->seconds), Clock::now()];
        $isHeld = $this->held()?->setLease($lease) ?? false;
        if ($isHeld) {
            // The grant of a callback counts its lease by itself.
            $this->grant?->prolong($lease, $askedAt);
        }
        return $isHeld;
    }

    /** Returns the fencing token of the owner's grant, or null if it holds none. */
    public function fence(): ?int
    {
        $holder = $this->held();
        return $holder?->owns() ? $holder->fence : null;
    }

    /** Returns the name of Laravel's connection to the server, like Laravel's Redis lock. */
    public function getConnectionName(): ?string
    {
        return $this->connection;
    }

    /** Returns the owner, or the token of a holder that another program named. */
    protected function getCurrentOwner(): ?string
    {
        $holder = $this->recipe->holders()[0] ?? null;
        return $holder?->data ?: $holder?->token();
    }

    /** Notes a grant, which outlives this object. Returns false if there is none. */
    private function keep(?Grant $grant): bool
    {
        if ($grant !== null) {
            $this->holder = $this->recipe->holder($grant->token(), $grant->fence, $grant->isUnclear());
            $grant->detach();
        }
        return $grant !== null;
    }

    /** Returns the holder of this object, or else of its owner. */
    private function held(): ?Holder
    {
        if ($this->holder !== null) {
            return $this->holder;
        }
        $isOwner = fn (Holder $holder) => $holder->data === (string) $this->owner;
        $holder = array_values(array_filter($this->recipe->holders(), $isOwner))[0] ?? null;
        return $holder === null ? null : $this->recipe->holder($holder->token(), $holder->fence);
    }

    /** Calls the callback, and releases the lock. Like in Laravel, a loss leaves the result as it is. */
    private function during(Grant $grant, callable $callback): mixed
    {
        $hasEnded = false;
        $this->grant = $grant;
        $this->holder = $this->recipe->holder($grant->token(), $grant->fence, $grant->isUnclear());
        try {
            $this->recipe->during($grant, function () use ($callback, &$result, &$hasEnded): void {
                $result = $callback();
                $hasEnded = true;
            });
        } catch (LockLost $thrown) {
            if (!$hasEnded) {
                throw $thrown;
            }
        } finally {
            $this->grant = $this->holder = null;
        }
        return $result;
    }

    private function releaseGrant(Grant $grant): bool
    {
        try {
            return $grant->release();
        } catch (NotHeld) {
            return false;
        }
    }

    private static function lease(mixed $seconds): float
    {
        return self::seconds('seconds', $seconds) ?: self::WITHOUT_TIME;
    }

    private static function seconds(string $name, mixed $seconds): float
    {
        return is_numeric($seconds)
            ? (float) $seconds
            : throw new \InvalidArgumentException("$name must be a number");
    }
}
