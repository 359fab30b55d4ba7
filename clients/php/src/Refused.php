<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * The server replied with an error that isn't temporary. The caller gets the reason.
 *
 * @internal
 */
final class Refused extends \Exception
{
    public readonly \Exception $reason;

    public function __construct(\RedisException|\RedisClusterException $failure)
    {
        $error = $failure->getMessage();
        parent::__construct($error);
        $this->reason = match (true) {
            str_starts_with($error, 'DEADLOCK') => new Deadlock($error),
            str_starts_with($error, 'UNBLOCKED') && str_contains($error, 'LOCK.CANCEL') => new Cancelled($error),
            default => $failure,
        };
    }
}
