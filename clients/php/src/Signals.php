<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * Asynchronous signals. Between two commands their handlers run, and may throw.
 *
 * @internal
 */
final class Signals
{
    /**
     * PHP forgets a signal that comes as a call of phpredis ends with an exception.
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
