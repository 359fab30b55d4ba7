<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * The server has queued a command in a transaction of the program. It forgets that with the connection.
 *
 * @internal
 */
final class Queued extends \Exception
{
}
