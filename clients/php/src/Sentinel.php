<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * The primary that Redis Sentinel names.
 *
 * @internal
 */
final class Sentinel implements Servers
{
    private ?Server $primary = null;
    /** Configuration epoch of the newest primary that was named. */
    private int $epoch = 0;

    /**
     * @param Server $login how to log in at the primary, whose name is the host
     * @param non-empty-list<Server> $sentinels the one that replied last comes first
     */
    public function __construct(private readonly Server $login, private array $sentinels)
    {
    }

    public function of(string $key, float $until): Server
    {
        return $this->primary ??= $this->find($until);
    }

    public function isCurrent(Server $server, float $until): bool
    {
        try {
            $this->primary = $this->find($until);
        } catch (Outage|ServerError|ModuleMissing) {
            // Without a sentinel the known primary goes on.
            return true;
        }
        return (string) $this->primary === (string) $server;
    }

    public function moved(string $key, Server $from, string $host, int $port): Server
    {
        throw new Outage("$from is a node of a cluster");
    }

    public function failed(Server $server): void
    {
        $this->primary = null;
    }

    /**
     * Asks the sentinels in turn, because one that is cut off may name an older primary. An outage
     * goes before a refusal, because the next try may find a sentinel that replies.
     */
    private function find(float $until): Server
    {
        $outage = $refusal = null;
        foreach ($this->sentinels as $index => $sentinel) {
            $share = ($until - Clock::now()) / (count($this->sentinels) - $index);
            try {
                $found = $this->ask($sentinel, Clock::now() + $share);
            } catch (Outage $outage) {
                continue;
            } catch (ServerError|ModuleMissing $refusal) {
                continue;
            }
            if ($found['config-epoch'] >= $this->epoch) {
                $this->epoch = (int) $found['config-epoch'];
                unset($this->sentinels[$index]);
                $this->sentinels = [$sentinel, ...$this->sentinels];
                return $this->login->at($found['ip'], (int) $found['port']);
            }
            $outage = new Outage("$sentinel names an older primary of {$this->login->host}");
        }
        throw $outage ?? $refusal;
    }

    /** @return array<string, string> */
    private function ask(Server $sentinel, float $until): array
    {
        $connection = new Connection($sentinel, $until);
        $connection->send([['SENTINEL', 'MASTER', $this->login->host]], $until);
        $reply = $connection->receive($until);
        if ($reply instanceof ErrorReply) {
            throw $reply->exception($sentinel);
        }
        return array_column(array_chunk($reply, 2), 1, 0);
    }
}
