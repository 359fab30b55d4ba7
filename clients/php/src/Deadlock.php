<?php

declare(strict_types=1);

namespace RedisLock;

/** The wait would never end. */
final class Deadlock extends LockException
{
}
