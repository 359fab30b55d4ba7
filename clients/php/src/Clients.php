<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * Looks at what a program gives as its client.
 *
 * @internal
 */
final class Clients
{
    /**
     * Returns a function that makes the client whose connection takes at most so many seconds.
     *
     * @return \Closure(float): Client
     * @throws \InvalidArgumentException|\TypeError
     */
    public static function maker(#[\SensitiveParameter] object $redis, float $timeout): \Closure
    {
        if (!$redis instanceof \Closure) {
            $client = self::of($redis, $timeout);
            return fn (float $seconds) => $client;
        }
        return static function (float $seconds) use ($redis): Client {
            try {
                return self::of($redis($seconds), $seconds);
            } catch (\RedisException|\RedisClusterException|\Predis\PredisException $thrown) {
                throw ErrorReply::of($thrown->getMessage()) ?? PhpRedis::failure($thrown, 'the server');
            }
        };
    }

    private static function of(#[\SensitiveParameter] mixed $client, float $longestConnect): Client
    {
        return match (true) {
            $client instanceof \Redis => new PhpRedis($client, $longestConnect),
            $client instanceof \RedisCluster => new PhpRedisCluster($client),
            $client instanceof \Predis\ClientInterface => Predis::of($client),
            default => throw new \TypeError(
                'redis must be a Redis, a RedisCluster, a Predis\Client, or a function that returns one',
            ),
        };
    }
}
