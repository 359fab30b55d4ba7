<?php

declare(strict_types=1);

namespace RedisLock\Symfony;

use RedisLock\Cancelled;
use RedisLock\Deadlock;
use RedisLock\Lock;
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
 * is the token of its grant, so another process can go on with the serialized key.
 */
final class RedisLockStore implements BlockingStoreInterface, BlockingSharedLockStoreInterface
{
    use ExpiringStoreTrait;

    /** @var \WeakMap<Key, Grant> grants that this process knows */
    private \WeakMap $grants;
    /** @var \WeakMap<Key, true> keys whose release failed, so the server may still release their tokens */
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
        $this->grants = new \WeakMap();
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
        if (!$this->ask(fn () => $this->grant($key)?->lock->extend($ttl))) {
            $this->forget($key);
            throw new LockConflictedException("The lock \"$key\" isn't held any more.");
        }
        $this->checkNotExpired($key);
    }

    public function delete(Key $key): void
    {
        $grant = $this->ask(fn () => $this->grant($key));
        if ($grant === null) {
            return;
        }
        // If the server doesn't reply, the state stays, so exists() and delete() ask it again.
        unset($this->grants[$key]);
        $this->unreleased[$key] = true;
        $this->ask(fn () => $grant->lock->release());
        $this->forget($key);
    }

    public function exists(Key $key): bool
    {
        return $this->ask(fn () => $this->grant($key)?->lock->owned() ?? false);
    }

    /**
     * Returns the fencing token of the key's grant, or null if the key has none.
     *
     * @throws LockStorageException
     */
    public function fence(Key $key): ?int
    {
        $grant = $this->ask(fn () => $this->grant($key));
        return $grant?->lock->isLost() ? null : $grant?->lock->fence();
    }

    private function acquire(Key $key, bool $shared, float $wait): void
    {
        if (isset($this->unreleased[$key])) {
            // A release that comes late would end a new grant of the same token.
            $this->delete($key);
            $this->forget($key);
        }
        $grant = $this->ask(fn () => $this->grant($key));
        if (!$this->ask(fn () => $this->isKept($key, $grant, $shared))) {
            $lock = $this->request($key, $shared, $wait, $grant?->lock);
            $this->grants[$key] = new Grant($lock, $shared);
            $key->setState(self::class, $lock->token());
        }
        $key->reduceLifetime($this->grants[$key]->lock->remaining());
        $this->checkNotExpired($key);
    }

    /**
     * Extends a grant of this mode. Returns false if there is none, or if another process has changed
     * its mode by the serialized key.
     */
    private function isKept(Key $key, ?Grant $grant, bool $shared): bool
    {
        return $grant?->shared === $shared
            && $grant->lock->extend($this->initialTtl)
            && $this->find($key)?->shared === $shared;
    }

    /** Returns a lock that was granted, which converts the grant before to the new mode. */
    private function request(Key $key, bool $shared, float $wait, ?Lock $before): Lock
    {
        $token = $before === null || $before->isLost() ? null : $before->token();
        $lock = $this->locks->lock((string) $key, $this->initialTtl, token: $token, shared: $shared, autoRelease: false);
        try {
            // Without a limit, only a try reports an outage.
            $fence = $wait === INF ? $lock->tryAcquire() ?? $lock->acquire(INF) : $lock->acquire($wait);
        } catch (Deadlock|Cancelled $thrown) {
            throw new LockConflictedException($thrown->getMessage(), 0, $thrown);
        } catch (LockException $thrown) {
            if ($thrown instanceof Unavailable) {
                $this->forget($key);
            }
            throw new LockStorageException($thrown->getMessage(), 0, $thrown);
        } catch (\Throwable $thrown) {
            // A signal handler ended the wait, and the client withdrew the token.
            $this->forget($key);
            throw $thrown;
        }
        if ($fence === null) {
            throw new LockConflictedException("The lock \"$key\" is held by another key.");
        }
        return $lock;
    }

    /**
     * Returns the key's grant, unless the process that has it forked this one. If the grant's lease is
     * over on the local clock, another process may have extended it.
     */
    private function grant(Key $key): ?Grant
    {
        $known = $this->grants[$key] ?? null;
        return match (true) {
            $known === null => $this->find($key),
            $known->process !== getmypid() => null,
            $known->lock->isLost() => $this->find($key) ?? $known,
            default => $known,
        };
    }

    /** Asks the server for the grant of the token that is the key's state. */
    private function find(Key $key): ?Grant
    {
        if ($key->hasState(self::class)) {
            foreach ($this->locks->holders((string) $key) as $lock) {
                if ($lock->token() === $key->getState(self::class)) {
                    return $this->grants[$key] = new Grant($lock, $lock->isShared());
                }
            }
        }
        return null;
    }

    private function forget(Key $key): void
    {
        unset($this->grants[$key], $this->unreleased[$key]);
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
