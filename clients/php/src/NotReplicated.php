<?php

declare(strict_types=1);

namespace RedisLock;

/** Too few replicas acknowledged the grant, which was released. */
final class NotReplicated extends \RuntimeException implements LockException {}
