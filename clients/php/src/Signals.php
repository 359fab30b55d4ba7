<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * Asynchronous signals. Their handlers run at points where the library may be left by an exception.
 *
 * @internal
 */
final class Signals
{
    /** Longest time in seconds between two such points. */
    public const PAUSE = 0.1;

    private static bool $areHandled = false;

    /**
     * Runs the work, in which handle() runs the handlers of asynchronous signals.
     *
     * @template T
     * @param \Closure(): T $work
     * @return T
     */
    public static function atSafePoints(\Closure $work): mixed
    {
        if (!function_exists('pcntl_async_signals') || !pcntl_async_signals(false)) {
            return $work();
        }
        self::$areHandled = true;
        try {
            return $work();
        } finally {
            self::$areHandled = false;
            pcntl_async_signals(true);
            pcntl_signal_dispatch();
        }
    }

    /**
     * Runs the work, and no signal handler before its end.
     *
     * @param \Closure(): void $work
     */
    public static function after(\Closure $work): void
    {
        $isAsync = function_exists('pcntl_async_signals') && pcntl_async_signals(false);
        $areHandled = self::$areHandled;
        self::$areHandled = false;
        try {
            $work();
        } finally {
            self::$areHandled = $areHandled;
            if ($isAsync) {
                pcntl_async_signals(true);
                pcntl_signal_dispatch();
            }
        }
    }

    public static function handle(): void
    {
        if (self::$areHandled) {
            pcntl_signal_dispatch();
        }
    }
}
