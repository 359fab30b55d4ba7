<?php

declare(strict_types=1);

namespace RedisLock;

/** The object holds the lock already, and was made without reentrant: true. */
final class AlreadyHeld extends \LogicException implements LockException
{
}
