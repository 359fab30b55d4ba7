<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * A call ended before all its commands had a reply: by an outage, by an exception of a signal
 * handler, or because the server refused the login or the first of two commands.
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
        public readonly bool $mayHaveRun,
    ) {
        parent::__construct();
    }

    public function isOutage(): bool
    {
        return $this->reason instanceof Outage;
    }

    /** Returns true if a signal handler threw. */
    public function isInterruption(): bool
    {
        $reason = $this->reason;
        return !$this->isOutage() && !$reason instanceof ServerError && !$reason instanceof ModuleMissing;
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
