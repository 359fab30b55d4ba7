<?php

declare(strict_types=1);

namespace RedisLock;

/** Base of this library's own exceptions. All others are phpredis's. */
abstract class LockException extends \RuntimeException
{
}
