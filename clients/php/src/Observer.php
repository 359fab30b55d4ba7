<?php

declare(strict_types=1);

namespace RedisLock;

/** Hooks for logs and metrics. Override what you need. An exception of a hook is dropped. */
class Observer
{
    /**
     * Called after each acquire() that didn't get the lock at once.
     *
     * @param string $outcome granted, not acquired, cancelled or failed
     */
    public function waited(Lock $lock, float $seconds, string $outcome): void {}

    public function granted(Grant $grant): void {}

    /** Called once for each loss, by the call that finds it, or if a grant is dropped without a release. */
    public function lost(Grant $grant): void {}

    /**
     * Called once for each outage that no exception reports: in a wait without a limit, at the end of
     * using(), and in a destructor. Writes to PHP's error log.
     */
    public function unavailable(LockException $error): void
    {
        error_log('redis-lock: ' . $error->getMessage());
    }
}
