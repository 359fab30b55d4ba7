<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * The holder of a lock, known by its token. The drop-ins have it in place of a grant, because another
 * process may go on with it.
 *
 * @internal
 */
final class Holder
{
    /** The time at which a grant counts as lost. Another process may move that of a drop-in. */
    public float $deadline = INF;
    /** The server keeps a lock with `atLeast` until then. */
    public float $staysUntil = -INF;

    /**
     * @param Commands $lent sends on the connection to which a session is tied
     * @param Call $call the latest command, which set the lease and tied the session
     * @param bool $isUnclear true if a command that asked for the lock may still arrive
     */
    public function __construct(
        public readonly Commands $commands,
        public readonly Commands $lent,
        public readonly Options $options,
        public readonly Call $call,
        public readonly int $fence,
        public readonly bool $isUnclear = true,
        public readonly ?string $data = null,
    ) {}

    public function token(): string
    {
        return $this->call->token();
    }

    /** Asks the server whether it holds all keys. */
    public function owns(): bool
    {
        return min($this->askOfEachKey('LOCK.CHECK')) > 0;
    }

    /** Sets the lease, also to a shorter one. Returns false if the lock was lost. */
    public function setLease(float $lease): bool
    {
        Options::duration('lease', $lease);
        return min($this->askOfEachKey('LOCK.EXTEND', 'PX', Clock::milliseconds($lease))) === 1;
    }

    /** Returns false if the lock was lost. After an outage the release goes on with later calls. */
    public function release(?float $until = null): bool
    {
        $call = new Call($this->token());
        try {
            return $this->lent->retry(function (float $end) use ($call): bool {
                $count = $this->lent->ask($this->lastWords(), $call, $end);
                // If a reply was lost, the command before may have released the lock. A session has
                // ended with its connection.
                $isOver = $this->options->session || Clock::now() >= $this->deadline;
                return $count === count($this->options->keys) || ($call->unanswered > 0 && !$isOver);
            }, $until ?? Clock::now() + $this->commands->timeout);
        } catch (\Throwable $thrown) {
            $this->leave();
            throw $thrown;
        } finally {
            if ($this->lent->connection !== $this->commands->connection) {
                $this->lent->connection->close();
            }
        }
    }

    /** Releases the lock now, with later calls, or at the end of the program. */
    public function leave(): void
    {
        $end = Clock::now() + $this->options->longestTrace;
        $this->commands->leave($this->lastWords(), max($this->deadline, $end));
    }

    /** @return non-empty-list<mixed> */
    private function askOfEachKey(string $command, string|int ...$words): array
    {
        $call = new Call($this->token());
        $keys = $this->options->keys;
        return $this->commands->ofEachKey($keys, $call, $command, $this->token(), ...$words);
    }

    /** @return non-empty-list<string|int> */
    private function lastWords(): array
    {
        $rest = $this->staysUntil - Clock::now();
        $trace = $this->isUnclear ? $this->options->longestTrace : 0.0;
        return $rest > 0
            ? $this->options->releaseAfter($this->call, $rest)
            : $this->options->release($this->call, $trace);
    }
}
