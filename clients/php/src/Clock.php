<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * Monotonic clock in seconds, which continues while the process is stopped.
 *
 * @internal
 */
final class Clock
{
    public static function now(): float
    {
        return hrtime(true) / 1e9;
    }

    /** Returns milliseconds, rounded up because a wait must not end early, and at least 1. */
    public static function milliseconds(float $seconds): int
    {
        return max(1, (int) ceil($seconds * 1000));
    }
}
