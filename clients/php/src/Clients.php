<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * Reads the servers and the key prefix out of a client of phpredis or Predis. Nothing is sent with
 * the client itself.
 *
 * @internal
 */
final class Clients
{
    /**
     * @param array<string, mixed> $ssl
     * @return array{Servers, string} the servers, and the prefix of keys
     */
    public static function read(object $client, array $ssl): array
    {
        return match (true) {
            $client instanceof \Redis => [self::ofRedis($client, $ssl), $client->_prefix('')],
            $client instanceof \RedisCluster => [self::ofRedisCluster($client), $client->_prefix('')],
            $client instanceof \Predis\ClientInterface => self::ofPredis($client, $ssl),
        };
    }

    /** @param array<string, mixed> $ssl which phpredis doesn't reveal */
    private static function ofRedis(\Redis $redis, array $ssl): Servers
    {
        $host = $redis->getHost();
        if ($host === false) {
            throw new \InvalidArgumentException('redis must be connected');
        }
        [$password, $user] = array_pad(array_reverse((array) ($redis->getAuth() ?: [])), 2, null);
        $isTls = preg_match('~^(tls|ssl)://~', $host);
        $host = preg_replace('~^\w+://~', '', $host);
        $port = str_starts_with($host, '/') ? 0 : $redis->getPort();
        return new Nodes([new Server($host, $port, $isTls ? $ssl : null, $user, $password, $redis->getDbNum())]);
    }

    /** RedisCluster reveals neither its password nor TLS. */
    private static function ofRedisCluster(\RedisCluster $cluster): Servers
    {
        return new Nodes(array_map(fn (array $node) => new Server($node[0], $node[1]), $cluster->_masters()));
    }

    /**
     * @param array<string, mixed> $ssl
     * @return array{Servers, string}
     */
    private static function ofPredis(\Predis\ClientInterface $client, array $ssl): array
    {
        $options = $client->getOptions();
        $connection = $client->getConnection();
        // The namespace of these classes differs between Predis 1 and 2.
        $kind = (new \ReflectionClass($connection))->getShortName();
        $servers = match (true) {
            $connection instanceof \Predis\Connection\NodeConnectionInterface =>
                new Nodes([self::ofParameters($connection, $ssl)]),
            $kind === 'RedisCluster' => new Nodes(array_map(
                fn ($node) => self::ofParameters($node, $ssl),
                array_values(self::peek($connection, 'pool')),
            )),
            $kind === 'MasterSlaveReplication' => new Nodes([self::ofParameters($connection->getMaster(), $ssl)]),
            $kind === 'SentinelReplication' => new Sentinel(
                self::ofParameters($options->parameters ?? [], $ssl)->at(self::peek($connection, 'service'), 0),
                array_map(fn ($it) => self::ofParameters($it, $ssl), array_values(self::peek($connection, 'sentinels'))),
            ),
            default => throw new \InvalidArgumentException("redis: Predis's $kind isn't supported"),
        };
        return [$servers, $options->prefix?->getPrefix() ?? ''];
    }

    /** @param array<string, mixed> $ssl */
    private static function ofParameters(#[\SensitiveParameter] mixed $parameters, array $ssl): Server
    {
        $node = match (true) {
            $parameters instanceof \Predis\Connection\NodeConnectionInterface => $parameters->getParameters(),
            $parameters instanceof \Predis\Connection\ParametersInterface => $parameters,
            default => \Predis\Connection\Parameters::create($parameters),
        };
        $isTls = in_array($node->scheme, ['tls', 'rediss'], true);
        $isSocket = $node->scheme === 'unix';
        return new Server(
            $isSocket ? $node->path : $node->host,
            $isSocket ? 0 : (int) $node->port,
            $isTls ? (array) $node->ssl + $ssl : null,
            $node->username,
            $node->password,
            (int) $node->database,
        );
    }

    /** Returns a property that Predis doesn't publish. */
    private static function peek(object $connection, string $property): mixed
    {
        return (fn () => $this->$property)->call($connection);
    }
}
