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
        return $this->ask(fn () => $this->grant($key)?->lock->fence());
    }

    private function acquire(Key $key, bool $shared, float $wait): void
    {
        $grant = $this->ask(fn () => $this->grant($key));
        $isKept = $grant?->shared === $shared && $this->ask(fn () => $grant->lock->extend($this->initialTtl));
        if (!$isKept) {
            $grant = new Grant($this->request($key, $shared, $wait, $grant?->lock), $shared);
            $this->grants[$key] = $grant;
            $key->setState(self::class, $grant->lock->token());
        }
        $key->reduceLifetime($grant->lock->remaining());
        $this->checkNotExpired($key);
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

    /** Returns the key's grant, unless the process that has it forked this one. */
    private function grant(Key $key): ?Grant
    {
        $known = $this->grants[$key] ?? null;
        if ($known !== null) {
            return $known->process === getmypid() ? $known : null;
        }
        if ($key->hasState(self::class)) {
            foreach ($this->locks->holders((string) $key) as $lock) {
                if ($lock->token() === $key->getState(self::class)) {
                    return $this->grants[$key] = new Grant($lock, null);
                }
            }
        }
        return null;
    }

    private function forget(Key $key): void
    {
        unset($this->grants[$key]);
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
