<?php

declare(strict_types=1);

namespace RedisLock;

/** Somebody else gave the wait up, by LOCK.CANCEL. */
final class Cancelled extends LockException
{
}
