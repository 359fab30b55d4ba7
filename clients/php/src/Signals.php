<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * The handlers of asynchronous signals. PHP drops a signal that comes while a function of an extension
 * throws, so they are deferred meanwhile.
 *
 * @internal
 */
final class Signals
{
    /** Seconds of a wait between two points at which the handlers run. */
    public const SLICE = 0.15;

    /** Returns the longest time in seconds that a command may wait. */
    public static function longestSlice(): float
    {
        return self::areAsynchronous() ? self::SLICE : INF;
    }

    /**
     * Runs the work, and then the handlers. What a handler throws comes out.
     *
     * @template T
     * @param \Closure(): T $work
     * @return T
     */
    public static function after(#[\SensitiveParameter] \Closure $work): mixed
    {
        if (!self::areAsynchronous()) {
            return $work();
        }
        pcntl_async_signals(false);
        try {
            return $work();
        } finally {
            pcntl_async_signals(true);
            pcntl_signal_dispatch();
        }
    }

    /** Returns true if the program's handlers run at any time. */
    private static function areAsynchronous(): bool
    {
        return function_exists('pcntl_async_signals') && pcntl_async_signals();
    }
}
