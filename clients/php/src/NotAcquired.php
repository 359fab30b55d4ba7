<?php

declare(strict_types=1);

namespace RedisLock;

/** The lock was not granted within the time limit of using(). */
final class NotAcquired extends LockException
{
}
