<?php

declare(strict_types=1);

namespace RedisLock;

/** Another client cancelled the wait by LOCK.CANCEL. */
final class Cancelled extends \RuntimeException implements LockException {}
