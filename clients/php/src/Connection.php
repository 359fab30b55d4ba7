<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * A connection to the server of a key, by the client of the program. After a failure it is closed, and
 * the next command opens it anew.
 *
 * @internal
 */
final class Connection
{
    /** The client, or a function that makes one within so many seconds. */
    private readonly \SensitiveParameterValue $redis;
    private ?\SensitiveParameterValue $client = null;
    private readonly bool $isMadeAnew;
    /** The number of closed connections, whose sessions have ended. */
    private int $number = 0;
    private int $process;

    /** @throws \InvalidArgumentException|\TypeError */
    public function __construct(#[\SensitiveParameter] object $redis)
    {
        $this->redis = new \SensitiveParameterValue($redis);
        $this->isMadeAnew = $redis instanceof \Closure;
        $this->process = getmypid();
        $this->isMadeAnew || $this->client(INF);
    }

    /** Returns a connection for one session, if a function can make it. */
    public function forSession(): self
    {
        return $this->isMadeAnew ? new self($this->redis->getValue()) : $this;
    }

    /** Returns the seconds that the client waits for a reply, or INF if each command may say so. */
    public function patience(): float
    {
        return $this->client?->getValue()->patience() ?? INF;
    }

    /** Returns true if the connection of the latest reply to a call was closed since. */
    public function hasClosed(Call $call): bool
    {
        return $call->connection !== null && $call->connection !== $this->number;
    }

    /**
     * Sends a command, and returns its reply.
     *
     * @param non-empty-list<string|int> $words
     * @throws LockException|\LogicException the latter if the program is in a transaction
     */
    public function exchange(#[\SensitiveParameter] array $words, Call $call, float $until): mixed
    {
        if ($until <= Clock::now()) {
            throw new Unavailable('no time is left to ask a server');
        }
        if ($this->process !== getmypid()) {
            // The connection is that of the process which forked this one.
            $this->process = getmypid();
            $this->close();
        }
        $reply = Signals::after(fn () => $this->send($words, $call, $until));
        $call->unanswered--;
        return $reply;
    }

    public function close(): void
    {
        $isUsable = $this->client?->getValue()->close();
        $this->number++;
        if ($this->isMadeAnew && !$isUsable) {
            $this->client = null;
        }
    }

    /** @param non-empty-list<string|int> $words */
    private function send(#[\SensitiveParameter] array $words, Call $call, float $until): mixed
    {
        $isSent = false;
        try {
            $client = $this->client($until - Clock::now());
            $first = str_starts_with($words[0], 'LOCK.M') ? 2 : 1;
            $client->open($words[$first], $until);
            $isSent = true;
            $call->unanswered++;
            for ($at = $first; $at < ($first === 1 ? 2 : 2 + $words[1]); $at++) {
                $words[$at] = $client->prefix() . $words[$at];
            }
            $reply = $client->exchange($words, $call, $until);
        } catch (\LogicException $misuse) {
            throw $misuse;
        } catch (\Throwable $thrown) {
            throw $this->failure($thrown, $call, $isSent);
        }
        $call->connection = $this->number;
        if ($reply === true) {
            $this->close();
            throw new \LogicException('redis is in a transaction, which the command of a lock ends');
        }
        return $reply;
    }

    /** Returns the exception for the caller, and closes the connection unless it was a reply. */
    private function failure(
        #[\SensitiveParameter] \Throwable $thrown,
        Call $call,
        bool $isSent,
    ): \Throwable {
        $name = $this->client?->getValue()->name() ?? 'the server';
        $isOutage = $thrown instanceof \RedisException || $thrown instanceof \RedisClusterException
            || $thrown instanceof \Predis\PredisException;
        $reply = $isOutage || $thrown instanceof ErrorReply ? ErrorReply::of($thrown) : null;
        if ($reply === null || !$isSent || $reply->isOfServer()) {
            $this->close();
        }
        if ($reply !== null) {
            $call->unanswered -= (int) $isSent;
            return $reply->exception($name, $call->token());
        }
        return $isOutage ? new Unavailable("$name: " . trim($thrown->getMessage())) : $thrown;
    }

    private function client(float $seconds): Client
    {
        $this->client ??= new \SensitiveParameterValue($this->made($seconds));
        return $this->client->getValue();
    }

    private function made(float $seconds): Client
    {
        $redis = $this->redis->getValue();
        $client = $this->isMadeAnew ? $redis($seconds) : $redis;
        return match (true) {
            $client instanceof \Redis => new PhpRedis($client),
            $client instanceof \RedisCluster => new PhpRedisCluster($client),
            $client instanceof \Predis\ClientInterface => new Predis($client),
            default => throw new \TypeError(
                'redis must be a Redis, RedisCluster or Predis\Client, or a function that makes one',
            ),
        };
    }
}
