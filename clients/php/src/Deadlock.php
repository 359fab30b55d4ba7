<?php

declare(strict_types=1);

namespace RedisLock;

/** The server refused a wait that would never end. */
final class Deadlock extends \RuntimeException implements LockException {}
