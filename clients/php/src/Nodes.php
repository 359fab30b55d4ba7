<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * One server, or the nodes of a cluster. The slots' owners are learned from MOVED.
 *
 * @internal
 */
final class Nodes implements Servers
{
    /** @var non-empty-array<string, Server> by address; the first one is asked for unknown slots */
    private array $nodes = [];
    /** @var array<int, Server> by slot */
    private array $owners = [];

    /** @param non-empty-list<Server> $seeds */
    public function __construct(array $seeds)
    {
        foreach ($seeds as $seed) {
            $this->nodes[(string) $seed] = $seed;
        }
    }

    public function of(string $key, float $until): Server
    {
        $owner = $this->owners === [] ? null : $this->owners[self::slot($key)] ?? null;
        return $owner ?? reset($this->nodes);
    }

    public function isCurrent(Server $server, float $until): bool
    {
        // A node that lost a slot says MOVED by itself.
        return true;
    }

    public function moved(string $key, Server $from, string $host, int $port): Server
    {
        $owner = $from->at($host === '' ? $from->host : $host, $port);
        return $this->owners[self::slot($key)] = $this->nodes[(string) $owner] ??= $owner;
    }

    public function failed(Server $server): void
    {
        $this->owners = array_filter($this->owners, fn (Server $owner) => $owner !== $server);
        // Another node is asked next.
        unset($this->nodes[(string) $server]);
        $this->nodes[(string) $server] = $server;
    }

    /** Returns the slot of a cluster: CRC-16/XMODEM of the key, or of its hash tag. */
    private static function slot(string $key): int
    {
        $tag = preg_match('/^[^{]*\{([^}]+)\}/', $key, $found) ? $found[1] : $key;
        $crc = 0;
        foreach (unpack('C*', $tag) as $byte) {
            $crc ^= $byte << 8;
            for ($bit = 0; $bit < 8; $bit++) {
                $crc = ($crc << 1 ^ ($crc & 0x8000 ? 0x1021 : 0)) & 0xffff;
            }
        }
        return $crc % 16384;
    }
}
