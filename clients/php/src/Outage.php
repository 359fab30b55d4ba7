<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * No reply, or a temporary error. The command may be sent again.
 *
 * @internal Callers get Unavailable.
 */
final class Outage extends \Exception
{
}
