<?php

declare(strict_types=1);

namespace RedisLock;

/** No server could execute the command in time. The message has the cause. */
final class Unavailable extends \RuntimeException implements LockException
{
    /** @param bool $isLate true if no reply came in time, false if something failed */
    public function __construct(string $message, public readonly bool $isLate = false)
    {
        parent::__construct($message);
    }
}
