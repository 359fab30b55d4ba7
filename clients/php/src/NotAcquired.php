<?php

declare(strict_types=1);

namespace RedisLock;

/** The lock was not to be had in the time that using() was given. */
final class NotAcquired extends LockException
{
}
