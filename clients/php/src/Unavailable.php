<?php

declare(strict_types=1);

namespace RedisLock;

/** No server could execute the command in time. The message has the cause. */
final class Unavailable extends \RuntimeException implements LockException {}
