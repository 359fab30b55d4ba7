<?php

declare(strict_types=1);

namespace RedisLock;

use Predis\ClientInterface;
use Predis\Command\RawCommand;
use Predis\Connection\ConnectionException;
use Predis\Connection\NodeConnectionInterface;
use Predis\PredisException;
use Predis\Response\ErrorInterface;
use Predis\Response\Status;

/**
 * A client of Predis. The nodes are asked directly, so that each reply has a limit.
 *
 * @internal
 */
final class Predis implements Client
{
    /** The aggregates that choose the node of a command. Their namespaces differ between versions. */
    private const AGGREGATES = ['RedisCluster', 'SentinelReplication', 'MasterSlaveReplication'];

    private readonly string $prefix;
    private readonly object $connection;
    private readonly string $kind;
    /** The node of the latest command. */
    private ?NodeConnectionInterface $latest = null;
    /** The slot of the key of the next command in a cluster. */
    private ?int $slot = null;
    /** @var array<string, NodeConnectionInterface> the nodes that a cluster no longer asks */
    private array $failed = [];

    public function __construct(ClientInterface $client)
    {
        $this->prefix = $client->getOptions()->prefix?->getPrefix() ?? '';
        $this->connection = $client->getConnection();
        $this->kind = (new \ReflectionClass($this->connection))->getShortName();
        $isNode = $this->connection instanceof NodeConnectionInterface;
        if (!$isNode && !in_array($this->kind, self::AGGREGATES, true)) {
            throw new \InvalidArgumentException("redis: Predis's $this->kind isn't supported");
        }
    }

    public function prefix(): string
    {
        return $this->prefix;
    }

    public function patience(): float
    {
        return INF;
    }

    public function open(string $key, float $until): void
    {
        if ($this->kind === 'RedisCluster') {
            $strategy = $this->connection->getClusterStrategy();
            $this->slot = $strategy->getSlotByKey($this->prefix . $key);
        }
        $this->node()->connect();
    }

    public function exchange(#[\SensitiveParameter] array $words, Call $call, float $until): mixed
    {
        $reply = $this->ask($this->latest, $words, $until);
        if ($reply instanceof ErrorInterface) {
            $reply = $this->follow($reply, $words, $until);
        }
        return match (true) {
            $reply instanceof ErrorInterface => throw new ErrorReply($reply->getMessage()),
            $reply instanceof Status => true,
            default => $reply,
        };
    }

    public function close(): bool
    {
        $this->connection->disconnect();
        if ($this->kind === 'RedisCluster' && $this->latest !== null) {
            $this->leaveOut($this->latest);
        } elseif ($this->kind === 'SentinelReplication') {
            $this->forgetPrimary();
        }
        return $this->kind === 'RedisCluster';
    }

    public function name(): string
    {
        return (string) ($this->latest ?? 'the server');
    }

    /** Has a Sentinel asked for the primary, by a connection of this process. */
    private function forgetPrimary(): void
    {
        if ($this->latest !== null) {
            $this->connection->remove($this->latest);
        }
        try {
            $this->connection->getSentinelConnection()->disconnect();
        } catch (PredisException) {
            // No Sentinel is left.
        }
    }

    /** Has a cluster ask another node, or any of them if all have failed. */
    private function leaveOut(NodeConnectionInterface $node): void
    {
        $this->failed[(string) $node] = $node;
        $this->connection->remove($node);
        if (count($this->connection) === 0) {
            array_map($this->connection->add(...), $this->failed);
            $this->failed = [];
        }
    }

    /** Returns the node of the next command. An aggregate may have to connect for this. */
    private function node(): NodeConnectionInterface
    {
        $connection = $this->connection;
        $command = RawCommand::create('LOCK.CHECK');
        return $this->latest = match (true) {
            $connection instanceof NodeConnectionInterface => $connection,
            $this->slot !== null => $connection->getConnectionBySlot($this->slot),
            method_exists($connection, 'getConnectionByCommand') =>
                $connection->getConnectionByCommand($command),
            default => $connection->getConnection($command),
        };
    }

    /**
     * Follows a redirection, whose node the aggregate notes. It would wait without a limit if it
     * followed by itself.
     */
    private function follow(
        ErrorInterface $reply,
        #[\SensitiveParameter] array $words,
        float $until,
    ): mixed {
        if (!preg_match('/^(MOVED|ASK) (\d+) (.*):(\d+)$/', $reply->getMessage(), $found)) {
            return $reply;
        }
        [, $kind, $slot, $host, $port] = $found;
        $cluster = $this->connection;
        if ($kind === 'ASK') {
            $node = $cluster->getConnectionFactory()->create(['host' => $host, 'port' => $port]);
            $this->ask($node, ['ASKING'], $until);
            return $this->ask($node, $words, $until);
        }
        // The node stays, but not for this slot.
        $cluster->remove($this->latest);
        $cluster->add($this->latest);
        $slots = method_exists($cluster, 'setSlots') ? $cluster : $cluster->getSlotMap();
        $slots->setSlots($slot, $slot, "$host:$port");
        return $this->ask($this->node(), $words, $until);
    }

    /** Sends a command, and waits for its reply until a time. */
    private function ask(
        #[\SensitiveParameter] NodeConnectionInterface $node,
        #[\SensitiveParameter] array $words,
        float $until,
    ): mixed {
        $command = RawCommand::create(...$words);
        $node->writeRequest($command);
        $stream = $node->getResource();
        do {
            [$reads, $none, $left] = [[$stream], null, $until - Clock::now()];
            if ($left <= 0) {
                throw new ConnectionException($node, 'no reply in time');
            }
            // A signal ends it with false.
            $microseconds = (int) (1e6 * min($left, 10.0));
        } while (@stream_select($reads, $none, $none, 0, $microseconds) !== 1);
        return $node->readResponse($command);
    }
}
