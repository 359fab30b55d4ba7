<?php

declare(strict_types=1);

namespace RedisLock;

/** The server has not loaded the redis-lock module. */
final class ModuleMissing extends \RuntimeException implements LockException {}
