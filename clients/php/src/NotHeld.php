<?php

declare(strict_types=1);

namespace RedisLock;

/** The object has not acquired the lock. */
final class NotHeld extends \LogicException implements LockException {}
