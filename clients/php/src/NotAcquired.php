<?php

declare(strict_types=1);

namespace RedisLock;

/** Another client held the lock until the wait was over. Thrown by using() alone. */
final class NotAcquired extends \RuntimeException implements LockException {}
