<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * Monotonic seconds, which go on while the process stands still.
 *
 * @internal
 */
final class Clock
{
    public static function now(): float
    {
        return hrtime(true) / 1e9;
    }

    /** Rounded up: a wait must not end before its time. */
    public static function milliseconds(float $seconds): int
    {
        return max(1, (int) ceil($seconds * 1000));
    }
}
