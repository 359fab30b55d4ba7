<?php

declare(strict_types=1);

namespace RedisLock\Laravel;

use Illuminate\Cache\Lock as CacheLock;
use Illuminate\Contracts\Cache\LockTimeoutException;
use RedisLock\Lock as Grant;
use RedisLock\LockLost;
use RedisLock\Locks;
use RedisLock\NotAcquired;

/**
 * Laravel's cache lock, whose block() waits in the server's queue. Each object has a token of its
 * own, so two objects with the same owner exclude each other. The owner is the lock's data, by which
 * another process finds the lock.
 */
final class Lock extends CacheLock
{
    /** Lease in seconds of a lock that has no time in Laravel. */
    private const WITHOUT_TIME = 86400.0;

    private Grant $grant;

    /**
     * @param string $name
     * @param int|float|numeric-string $seconds 0: without a time, which is a lease of 24 hours here
     * @param ?string $owner random by default
     * @param ?string $connection name of Laravel's connection to the server
     * @throws \InvalidArgumentException
     */
    public function __construct(
        private readonly Locks $locks,
        $name,
        $seconds,
        $owner = null,
        private readonly ?string $connection = null,
    ) {
        parent::__construct($name, $seconds, $owner);
        $this->grant = $this->newGrant();
    }

    public function acquire(): bool
    {
        if (!$this->isFree()) {
            return false;
        }
        $grant = $this->nextGrant();
        if ($grant->tryAcquire() === null) {
            return false;
        }
        $this->grant = $grant;
        return true;
    }

    public function get($callback = null)
    {
        if (!is_callable($callback)) {
            return $this->acquire();
        }
        return $this->isFree() && $this->during($this->nextGrant(), $callback, 0.0, $result) ? $result : false;
    }

    public function block($seconds, $callback = null)
    {
        $wait = self::seconds('wait', $seconds);
        // Another token waits for the lease of this object, which stays if the wait fails.
        $grant = $this->isFree() ? $this->nextGrant() : $this->newGrant();
        if (is_callable($callback)) {
            return $this->during($grant, $callback, $wait, $result) ? $result : throw new LockTimeoutException();
        }
        if ($grant->acquire($wait) === null) {
            throw new LockTimeoutException();
        }
        $this->grant = $grant;
        return true;
    }

    public function release(): bool
    {
        return $this->held()?->release() ?? false;
    }

    public function forceRelease(): void
    {
        foreach ($this->locks->holders($this->name) as $holder) {
            $holder->release();
        }
    }

    /** Sets what is left of the lease. Returns false if the owner doesn't hold the lock. */
    public function refresh($seconds = null): bool
    {
        $lease = self::lease($seconds ?? $this->seconds);
        return $this->held()?->extend($lease) ?? false;
    }

    /** Returns the fencing token of the owner's grant, or null if it holds none. */
    public function fence(): ?int
    {
        $grant = $this->held();
        return $grant?->isLost() ? null : $grant?->fence();
    }

    /** Returns the name of Laravel's connection to the server, like Laravel's Redis lock. */
    public function getConnectionName(): ?string
    {
        return $this->connection;
    }

    /** Returns the owner, or the token of a holder that another program named. */
    protected function getCurrentOwner(): ?string
    {
        $holder = $this->locks->holders($this->name)[0] ?? null;
        return $holder?->data() ?? $holder?->token();
    }

    /**
     * Returns what acquires the lock next. After a loss it has another token, because another process
     * may have extended the lost grant, and hold the lock by it.
     */
    private function nextGrant(): Grant
    {
        if (!$this->grant->isLost()) {
            return $this->grant;
        }
        // Sends nothing, and reports the loss to the observer if only the clock has found it.
        $this->grant->extend(self::WITHOUT_TIME);
        return $this->newGrant();
    }

    private function newGrant(): Grant
    {
        $lease = self::lease($this->seconds);
        return $this->locks->lock($this->name, lease: $lease, autoRelease: false, data: (string) $this->owner);
    }

    /** Returns true if this object doesn't hold the lock. Another object may have released it. */
    private function isFree(): bool
    {
        if ($this->grant->remaining() === 0.0) {
            return true;
        }
        if ($this->grant->owned()) {
            return false;
        }
        $this->grant->release();
        return true;
    }

    /** Returns the grant of this object, or else of its owner. */
    private function held(): ?Grant
    {
        if ($this->grant->remaining() > 0.0 || $this->grant->isLost()) {
            return $this->grant;
        }
        foreach ($this->locks->holders($this->name) as $holder) {
            if ($holder->data() === (string) $this->owner) {
                return $holder;
            }
        }
        return null;
    }

    /** Returns false if another client held the lock. Like in Laravel, a loss leaves the result as it is. */
    private function during(Grant $grant, callable $callback, float $wait, mixed &$result): bool
    {
        $hasBegun = $hasEnded = false;
        try {
            $grant->using(function () use ($grant, $callback, &$result, &$hasBegun, &$hasEnded): void {
                $this->grant = $grant;
                $hasBegun = true;
                $result = $callback();
                $hasEnded = true;
            }, $wait);
        } catch (NotAcquired $thrown) {
            return $hasBegun ? throw $thrown : false;
        } catch (LockLost $thrown) {
            return $hasEnded ?: throw $thrown;
        }
        return true;
    }

    private static function lease(mixed $seconds): float
    {
        return self::seconds('seconds', $seconds) ?: self::WITHOUT_TIME;
    }

    private static function seconds(string $name, mixed $seconds): float
    {
        return is_numeric($seconds) ? (float) $seconds : throw new \InvalidArgumentException("$name must be a number");
    }
}
