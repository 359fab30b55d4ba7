<?php

declare(strict_types=1);

namespace RedisLock;

use Predis\ClientInterface;
use Predis\Command\RawCommand;
use Predis\CommunicationException;
use Predis\Connection\NodeConnectionInterface;
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

    private readonly \SensitiveParameterValue $connection;
    private readonly string $kind;
    /** The node of the latest command. */
    private ?\SensitiveParameterValue $latest = null;
    /** @var array<string, \SensitiveParameterValue> the nodes that a cluster no longer asks */
    private array $failed = [];

    public function __construct(private readonly string $prefix, #[\SensitiveParameter] object $connection)
    {
        $this->connection = new \SensitiveParameterValue($connection);
        $this->kind = (new \ReflectionClass($connection))->getShortName();
        $isNode = $connection instanceof NodeConnectionInterface;
        if (!$isNode && !in_array($this->kind, self::AGGREGATES, true)) {
            throw new \InvalidArgumentException("redis: Predis's $this->kind isn't supported");
        }
    }

    public static function of(ClientInterface $client): self
    {
        return new self($client->getOptions()->prefix?->getPrefix() ?? '', $client->getConnection());
    }

    public function prefix(): string
    {
        return $this->prefix;
    }

    public function patience(): float
    {
        $node = $this->latest?->getValue();
        // The time to connect was set when it was made.
        return $node === null || $node->isConnected() ? INF : (float) ($node->getParameters()->timeout ?? 5.0);
    }

    public function open(string $key, float $until): void
    {
        $this->guarded(fn () => $this->node($this->command($this->prefix . $key, ['LOCK.CHECK']))->connect());
    }

    public function exchange(
        string $key,
        #[\SensitiveParameter] array $words,
        Call $call,
        float $until,
    ): mixed {
        $command = $this->command($key, $words);
        $reply = $this->guarded(function () use ($command, $until): mixed {
            $reply = $this->ask($this->node($command), $command, $until);
            return $this->follow($reply, $command, $until);
        });
        return match (true) {
            $reply instanceof ErrorInterface => throw new ErrorReply($reply->getMessage()),
            $reply instanceof Status => throw new Queued(),
            default => $reply,
        };
    }

    public function close(): void
    {
        if ($this->latest !== null) {
            $this->forget($this->latest->getValue());
        }
    }

    public function abandon(): void
    {
        $connection = $this->connection();
        $connection->disconnect();
        if ($this->kind === 'SentinelReplication') {
            $this->guarded(fn () => $connection->getSentinelConnection()->disconnect());
        }
    }

    public function findsServers(): bool
    {
        return $this->kind === 'RedisCluster';
    }

    public function name(): string
    {
        return $this->latest === null ? 'the server' : (string) $this->latest->getValue();
    }

    private function connection(): object
    {
        return $this->connection->getValue();
    }

    /** @param non-empty-list<string> $words */
    private function command(string $key, #[\SensitiveParameter] array $words): RawCommand
    {
        $command = RawCommand::create(...$words);
        if ($this->kind === 'RedisCluster') {
            $command->setSlot($this->connection()->getClusterStrategy()->getSlotByKey($key));
        }
        return $command;
    }

    /** Returns the node that executes a command. An aggregate may have to connect for this. */
    private function node(#[\SensitiveParameter] RawCommand $command): NodeConnectionInterface
    {
        $connection = $this->connection();
        $node = match (true) {
            $connection instanceof NodeConnectionInterface => $connection,
            method_exists($connection, 'getConnectionByCommand') =>
                $connection->getConnectionByCommand($command),
            default => $connection->getConnection($command),
        };
        $this->latest = new \SensitiveParameterValue($node);
        return $node;
    }

    /**
     * Follows a redirection, whose node the aggregate notes. It would wait without a limit if it
     * followed by itself.
     */
    private function follow(mixed $reply, #[\SensitiveParameter] RawCommand $command, float $until): mixed
    {
        $text = $reply instanceof ErrorInterface ? $reply->getMessage() : '';
        if (!preg_match('/^(MOVED|ASK) (\d+) (.*):(\d+)$/', $text, $found)) {
            return $reply;
        }
        [, $kind, $slot, $host, $port] = $found;
        $cluster = $this->connection();
        if ($kind === 'ASK') {
            $node = $cluster->getConnectionFactory()->create(['host' => $host, 'port' => $port]);
            $this->ask($node, RawCommand::create('ASKING'), $until);
            return $this->ask($node, $command, $until);
        }
        // The node stays, but not for this slot.
        $cluster->remove($this->latest->getValue());
        $cluster->add($this->latest->getValue());
        $slots = method_exists($cluster, 'setSlots') ? $cluster : $cluster->getSlotMap();
        $slots->setSlots($slot, $slot, "$host:$port");
        return $this->ask($this->node($command), $command, $until);
    }

    /** Sends a command, and waits for its reply until a time. */
    private function ask(
        #[\SensitiveParameter] NodeConnectionInterface $node,
        #[\SensitiveParameter] RawCommand $command,
        float $until,
    ): mixed {
        try {
            $node->writeRequest($command);
            $stream = $node->getResource();
            while (!self::isReadable($stream, $left = $until - Clock::now())) {
                if ($left <= 0) {
                    throw new Unavailable("no answer from $node in time", true);
                }
            }
            return $node->readResponse($command);
        } catch (\Throwable $thrown) {
            $this->forget($node);
            throw $thrown;
        }
    }

    /** Returns false if a signal came, or nothing within a time. */
    private static function isReadable($stream, float $seconds): bool
    {
        [$reads, $none, $microseconds] = [[$stream], null, (int) (max(0.0, min($seconds, 10.0)) * 1e6)];
        return @stream_select($reads, $none, $none, 0, $microseconds) === 1;
    }

    /** Closes a node's connection, and has the aggregate look for the node anew. */
    private function forget(#[\SensitiveParameter] NodeConnectionInterface $node): void
    {
        $node->disconnect();
        $connection = $this->connection();
        if ($connection === $node) {
            return;
        }
        $connection->remove($node);
        if ($this->kind !== 'RedisCluster') {
            return;
        }
        $this->failed[(string) $node] = new \SensitiveParameterValue($node);
        if (count($connection) === 0) {
            // All of them failed, so the next attempt begins with any of them.
            array_map(fn (\SensitiveParameterValue $it) => $connection->add($it->getValue()), $this->failed);
            $this->failed = [];
        }
    }

    /**
     * @template T
     * @param \Closure(): T $work
     * @return T
     */
    private function guarded(#[\SensitiveParameter] \Closure $work): mixed
    {
        try {
            return $work();
        } catch (CommunicationException $thrown) {
            $this->forget($thrown->getConnection());
            throw ErrorReply::of($thrown->getMessage()) ?? PhpRedis::failure($thrown, $this->name());
        } catch (\Predis\PredisException $thrown) {
            // No node or Sentinel is left.
            throw ErrorReply::of($thrown->getMessage()) ?? new Unavailable($thrown->getMessage());
        }
    }
}
