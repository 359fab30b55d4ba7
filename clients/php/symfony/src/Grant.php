<?php

declare(strict_types=1);

namespace RedisLock\Symfony;

use RedisLock\Lock;

/**
 * Grant of a key, and the process that recorded it.
 *
 * @internal
 */
final class Grant
{
    public readonly int $process;

    public function __construct(
        public readonly Lock $lock,
        /** true for a reader; another process may have changed it since */
        public readonly bool $shared,
    ) {
        $this->process = getmypid();
    }
}
