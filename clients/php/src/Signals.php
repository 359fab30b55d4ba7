<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * Asynchronous signals. Their handlers run between two commands, and may throw.
 *
 * @internal
 */
final class Signals
{
    /**
     * Runs the work, and handles signals after it. PHP would lose a signal that comes when a call
     * of phpredis ends with an exception.
     *
     * @template T
     * @param \Closure(): T $work
     * @return T
     */
    public static function after(\Closure $work): mixed
    {
        if (!function_exists('pcntl_async_signals') || !pcntl_async_signals(false)) {
            return $work();
        }
        try {
            return $work();
        } finally {
            pcntl_async_signals(true);
            pcntl_signal_dispatch();
        }
    }
}
