<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * An outage, or an exception of a signal handler, left commands without a reply.
 *
 * @internal
 */
final class Unfinished extends \Exception
{
    /**
     * @param list<Connection> $connections on which a reply may still come
     * @param bool $mayHaveRun true if the server may have executed a command of this call
     */
    public function __construct(
        public readonly \Throwable $reason,
        public readonly array $connections,
        public bool $mayHaveRun,
    ) {
        parent::__construct();
    }

    public function isOutage(): bool
    {
        return $this->reason instanceof Outage;
    }

    /** Returns what the caller gets. */
    public function exception(float $seconds, string $consequence = ''): \Throwable
    {
        if (!$this->isOutage()) {
            return $this->reason;
        }
        $tried = $seconds === INF ? '' : ', tried for ' . round($seconds, 3) . ' s';
        return new Unavailable($this->reason->getMessage() . $tried . $consequence);
    }
}
