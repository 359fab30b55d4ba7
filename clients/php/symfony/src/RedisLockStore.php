<?php

declare(strict_types=1);

namespace RedisLock\Symfony;

use RedisLock\Cancelled;
use RedisLock\Deadlock;
use RedisLock\Holder;
use RedisLock\LockException;
use RedisLock\Locks;
use RedisLock\Options;
use RedisLock\Unavailable;
use Symfony\Component\Lock\BlockingSharedLockStoreInterface;
use Symfony\Component\Lock\BlockingStoreInterface;
use Symfony\Component\Lock\Exception\InvalidTtlException;
use Symfony\Component\Lock\Exception\LockConflictedException;
use Symfony\Component\Lock\Exception\LockStorageException;
use Symfony\Component\Lock\Key;
use Symfony\Component\Lock\Store\ExpiringStoreTrait;

/**
 * Store of Symfony's Lock component, whose waiters stand in the server's queue. The state of a key
 * is the token and the fence of its grant, and whether a command of that token may still arrive. So
 * another process can go on with the serialized key.
 */
final class RedisLockStore implements BlockingStoreInterface, BlockingSharedLockStoreInterface
{
    use ExpiringStoreTrait;

    /**
     * @var \WeakMap<Key, array{int, Holder, bool}> what holds a key, its process, because a forked one holds
     *     nothing, and true for a reader
     */
    private \WeakMap $holders;
    /** @var \WeakMap<Key, true> keys whose release failed, so their tokens hold nothing any more */
    private \WeakMap $unreleased;

    /**
     * @param float $initialTtl seconds for which a lock is granted until its first refresh
     * @param float $wait seconds for which acquire(true) and acquireRead(true) wait; INF: without a
     *     limit
     * @throws \InvalidArgumentException
     */
    public function __construct(
        private readonly Locks $locks,
        private readonly float $initialTtl = 300.0,
        private readonly float $wait = INF,
    ) {
        self::checkTtl($initialTtl);
        Options::limit('wait', $wait);
        $this->holders = new \WeakMap();
        $this->unreleased = new \WeakMap();
    }

    public function save(Key $key): void
    {
        $this->acquire($key, false, 0.0);
    }

    public function saveRead(Key $key): void
    {
        $this->acquire($key, true, 0.0);
    }

    public function waitAndSave(Key $key): void
    {
        $this->acquire($key, false, $this->wait);
    }

    public function waitAndSaveRead(Key $key): void
    {
        $this->acquire($key, true, $this->wait);
    }

    public function putOffExpiration(Key $key, float $ttl): void
    {
        self::checkTtl($ttl);
        $key->reduceLifetime($ttl);
        if (!$this->ask(fn () => $this->holder($key)?->setLease($ttl))) {
            $this->forget($key);
            throw new LockConflictedException("The lock \"$key\" isn't held any more.");
        }
        $this->checkNotExpired($key);
    }

    public function delete(Key $key): void
    {
        $holder = $this->holder($key);
        if ($holder === null) {
            return;
        }
        // If the server doesn't reply, the state stays, so exists() and delete() ask it again.
        $this->unreleased[$key] = true;
        $this->ask(fn () => $holder->release());
        $this->forget($key);
    }

    public function exists(Key $key): bool
    {
        return $this->ask(fn () => $this->holder($key)?->owns() ?? false);
    }

    /**
     * Returns the fencing token of the key's grant, or null if the key has none.
     *
     * @throws LockStorageException
     */
    public function fence(Key $key): ?int
    {
        return $this->exists($key) ? $this->holder($key)->fence : null;
    }

    private function acquire(Key $key, bool $shared, float $wait): void
    {
        if (isset($this->unreleased[$key])) {
            // A release that comes late would end a new grant of the same token.
            $this->delete($key);
        }
        $left = $this->request($key, $shared, $wait);
        if ($left === null) {
            throw new LockConflictedException("The lock \"$key\" is held by another key.");
        }
        $key->reduceLifetime($left);
        $this->checkNotExpired($key);
    }

    /**
     * Returns the seconds that are left if the key was granted the lock, anew or in another mode. They
     * count from the request that was granted.
     */
    private function request(Key $key, bool $shared, float $wait): ?float
    {
        $before = $this->holder($key);
        $lock = $this->locks->lock((string) $key, $this->initialTtl, shared: $shared, margin: 0.0);
        // The token of a key that is held changes its mode.
        $acquire = fn (float $wait) => $lock->acquireAs($before?->token(), $wait);
        try {
            // Without a limit, only a try reports an outage.
            $grant = ($wait === INF ? $acquire(0.0) : null) ?? $acquire($wait);
        } catch (\Throwable $thrown) {
            $isRenewal = ($this->holders[$key][2] ?? null) === $shared;
            // The command that failed may still arrive.
            $before = $before === null ? null : $lock->holder($before->token(), $before->fence);
            if ($isRenewal && $before !== null) {
                $this->note($key, $before, $shared);
            }
            throw $this->failure($key, $isRenewal, $before, $thrown);
        }
        if ($grant === null) {
            return null;
        }
        $isUnclear = $grant->isUnclear() || $before?->isUnclear === true;
        $this->note($key, $lock->holder($grant->token(), $grant->fence, $isUnclear), $shared);
        $left = $grant->left();
        if ($left > 0.0) {
            $grant->detach();
        }
        return $left;
    }

    /** Returns what the store throws after a failure. A key whose mode isn't known is released. */
    private function failure(Key $key, bool $isRenewal, ?Holder $before, \Throwable $thrown): \Throwable
    {
        if ($thrown instanceof Deadlock || $thrown instanceof Cancelled) {
            return new LockConflictedException($thrown->getMessage(), 0, $thrown);
        }
        if (!$isRenewal && ($thrown instanceof Unavailable || !$thrown instanceof LockException)) {
            // Also if the handler of a signal ended the wait.
            $before?->leave();
            $this->forget($key);
        }
        return $thrown instanceof LockException
            ? new LockStorageException($thrown->getMessage(), 0, $thrown)
            : $thrown;
    }

    /** Returns the holder that is the key's state, unless the process that acquired it forked this one. */
    private function holder(Key $key): ?Holder
    {
        if (isset($this->holders[$key])) {
            [$process, $holder] = $this->holders[$key];
            return $process === getmypid() ? $holder : null;
        }
        return $key->hasState(self::class)
            ? $this->locks->lock((string) $key, $this->initialTtl)->holder(...$key->getState(self::class))
            : null;
    }

    private function note(Key $key, Holder $holder, bool $shared): void
    {
        $key->setState(self::class, [$holder->token(), $holder->fence, $holder->isUnclear]);
        $this->holders[$key] = [getmypid(), $holder, $shared];
    }

    private function forget(Key $key): void
    {
        unset($this->holders[$key], $this->unreleased[$key]);
        $key->removeState(self::class);
    }

    /**
     * @template T
     * @param \Closure(): T $work
     * @return T
     */
    private function ask(\Closure $work): mixed
    {
        try {
            return $work();
        } catch (LockException $thrown) {
            throw new LockStorageException($thrown->getMessage(), 0, $thrown);
        }
    }

    private static function checkTtl(float $ttl): void
    {
        try {
            Options::duration('ttl', $ttl);
        } catch (\InvalidArgumentException $wrong) {
            throw new InvalidTtlException($wrong->getMessage(), 0, $wrong);
        }
    }
}
