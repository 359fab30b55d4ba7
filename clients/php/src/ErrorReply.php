<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * The server's reply that a command failed.
 *
 * @internal
 */
final class ErrorReply
{
    /** Temporary errors, in words. */
    private const OUTAGES = [
        'LOADING ' => 'the server is loading its data',
        'READONLY ' => 'the server is a replica',
        'MASTERDOWN ' => 'the server is a replica without its primary',
        'CLUSTERDOWN ' => 'the cluster is down',
        'TRYAGAIN ' => 'the slot of the keys is moving',
        'OOM ' => 'the server is out of memory',
        'MISCONF ' => "the server can't save its data",
        'BUSY ' => 'the server runs a script',
        'ERR max number of clients' => 'the server has no room for another client',
    ];

    public function __construct(#[\SensitiveParameter] public readonly string $text)
    {
    }

    /**
     * Returns where a cluster serves the key instead.
     *
     * @return ?array{'MOVED'|'ASK', string, int} the host is empty if it is the replying host
     */
    public function redirection(): ?array
    {
        return preg_match('/^(MOVED|ASK) \d+ (.*):(\d+)$/', $this->text, $found)
            ? [$found[1], $found[2], (int) $found[3]]
            : null;
    }

    /** Returns true if the wait goes on at another connection, which took it over. */
    public function isTakenOver(): bool
    {
        return str_starts_with($this->text, 'UNBLOCKED ') && !$this->isCancelled() && !$this->isDemotion();
    }

    public function exception(Server $server): Outage|LockException
    {
        foreach (self::OUTAGES as $start => $words) {
            if (str_starts_with($this->text, $start)) {
                return new Outage("$server: $words");
            }
        }
        return match (true) {
            $this->isDemotion() => new Outage("$server: the server became a replica"),
            $this->isCancelled() => new Cancelled('the wait was cancelled by LOCK.CANCEL'),
            str_starts_with($this->text, 'DEADLOCK ') => new Deadlock($this->text),
            str_starts_with($this->text, 'NOREPLICAS ') => new NotReplicated($this->text),
            str_starts_with($this->text, 'ERR unknown command') =>
                new ModuleMissing("$server: this server hasn't loaded redis-lock"),
            default => new ServerError($this->text),
        };
    }

    private function isDemotion(): bool
    {
        return str_starts_with($this->text, 'UNBLOCKED ') && str_contains($this->text, 'instance state changed');
    }

    private function isCancelled(): bool
    {
        return str_starts_with($this->text, 'UNBLOCKED ') && str_contains($this->text, 'LOCK.CANCEL');
    }
}
