<?php

declare(strict_types=1);

namespace RedisLock;

/** The lock was lost before using() released it. */
final class LockLost extends \RuntimeException implements LockException {}
