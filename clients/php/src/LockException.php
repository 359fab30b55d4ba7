<?php

declare(strict_types=1);

namespace RedisLock;

/** Every exception of this library, except \InvalidArgumentException for a wrong argument. */
interface LockException extends \Throwable {}
