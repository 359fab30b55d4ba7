<?php

declare(strict_types=1);

namespace RedisLock;

/** What this library tells; all else is phpredis's. */
abstract class LockException extends \RuntimeException
{
}
