<?php

declare(strict_types=1);

namespace RedisLock;

/** The server refused the command, for example NOPERM, WRONGPASS or WRONGTYPE. */
final class ServerError extends \RuntimeException implements LockException {}
