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
    private static bool $areDeferred = false;

    /** Returns true if the program's handlers run at any time. */
    public static function areAsynchronous(): bool
    {
        return self::$areDeferred || (function_exists('pcntl_async_signals') && pcntl_async_signals());
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
        if (self::$areDeferred || !self::areAsynchronous()) {
            return $work();
        }
        pcntl_async_signals(false);
        self::$areDeferred = true;
        try {
            return $work();
        } finally {
            self::$areDeferred = false;
            pcntl_async_signals(true);
            pcntl_signal_dispatch();
        }
    }
}
