<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * Sends commands with the client of the program, and again after an outage.
 *
 * @internal
 */
final class Commands
{
    /** Seconds of the pause after the first failure, and of the longest one. */
    public const FIRST_PAUSE = 0.05;
    public const LONGEST_PAUSE = 1.0;

    /** Seconds that a call or the program's end gives to releases that got no reply. */
    private const LAST_WORDS = 0.1;

    /** Seconds between two tries of such releases by other calls. */
    private const PATIENCE = 1.0;

    /** Seconds of a wait between two points at which the handlers of asynchronous signals run. */
    public const SLICE = 0.15;

    /** Seconds of one attempt. There is time for another one. */
    public readonly float $attempt;
    private ?Client $client = null;
    /** @var list<Client> clients before, to which a session may be tied until the next one has it */
    private array $before = [];
    private bool $isDown = false;
    /** @var array<int, array{string, \SensitiveParameterValue, Call, float}> releases that got no reply */
    private array $unreleased = [];
    private float $nextTry = 0.0;
    /** The number of closed connections, whose sessions have ended. */
    private int $connection = 0;
    private int $process;

    /**
     * @param \Closure(float): Client $make makes a client that connects within so many seconds
     * @param ?self $origin what goes on with the release of a session that has its own connection
     */
    public function __construct(
        private readonly \Closure $make,
        private readonly bool $isMadeAnew,
        public readonly float $timeout,
        private readonly Observer $observer,
        private readonly ?self $origin = null,
    ) {
        $this->attempt = max(min($timeout, 1.0), $timeout / 3);
        $this->process = getmypid();
    }

    /** Returns the same with a connection for one session, if the program's function can make one. */
    public function ofSession(): self
    {
        $make = $this->make;
        return $this->isMadeAnew ? new self($make, true, $this->timeout, $this->observer, $this) : $this;
    }

    /** Returns the longest BLOCK, in seconds. */
    public function longestBlock(): float
    {
        return min($this->patience() / 2, Signals::areAsynchronous() ? self::SLICE : INF);
    }

    /** Returns the longest time in seconds that the server may wait for replicas. */
    public function longestReplication(): float
    {
        return min($this->timeout, 0.4 * $this->patience());
    }

    /** Returns true if the connection of the latest reply to a call was closed since. */
    public function hasClosed(Call $call): bool
    {
        return $call->connection !== $this->connection;
    }

    /** Calls a hook of the observer. */
    public function tell(string $hook, mixed ...$facts): void
    {
        Signals::after(function () use ($hook, $facts): void {
            try {
                $this->observer->$hook(...$facts);
            } catch (\Throwable) {
                // A hook doesn't change what a call does.
            }
        });
    }

    /** Tells the observer of an outage, once until a server replies again. */
    public function report(LockException $fault): void
    {
        if (!$this->isDown) {
            $this->isDown = true;
            $this->tell('unavailable', $fault);
        }
    }

    /**
     * Sends a command once, and returns its reply.
     *
     * @param non-empty-list<string|int> $words
     * @throws LockException Unavailable after an outage
     */
    public function ask(string $key, #[\SensitiveParameter] array $words, Call $call, float $until): mixed
    {
        $reply = $this->exchange($key, $words, $call, $until);
        if ($this->unreleased !== [] && Clock::now() >= $this->nextTry) {
            $this->goOn();
        }
        return $reply;
    }

    /**
     * Ends a connection on which the reply to another command came, because another part of the program
     * or another process reads and writes there.
     */
    public function refuse(Call $call): never
    {
        $call->unanswered++;
        $name = $this->client?->name() ?? 'the server';
        $this->close();
        throw new Unavailable("$name: the reply to another command came");
    }

    /**
     * Repeats an action after outages, until it succeeds or the time is over.
     *
     * @template T
     * @param \Closure(float): T $act gets the end of its attempt
     * @return T
     * @throws LockException
     */
    public function retry(#[\SensitiveParameter] \Closure $act, float $until): mixed
    {
        $fault = null;
        for ($pause = self::FIRST_PAUSE; ; $pause = min(2 * $pause, self::LONGEST_PAUSE)) {
            $began = Clock::now();
            try {
                return $act(min($until, $began + $this->attempt));
            } catch (Unavailable $thrown) {
                // A last try that had little time says nothing about the cause.
                $fault = $fault === null || $until - $began > self::FIRST_PAUSE ? $thrown : $fault;
            }
            $this->pause($pause, $until, $thrown);
            if (Clock::now() >= $until) {
                throw $fault;
            }
        }
    }

    /** Pauses before the next try, and leaves it the time that it needs. */
    public function pause(float $seconds, float $until, Unavailable $fault): void
    {
        $left = $until - Clock::now();
        $patience = $fault->isLate ? $this->patience() : INF;
        $beforeLast = $left - ($patience === INF ? self::FIRST_PAUSE : $patience);
        Clock::sleep($beforeLast > 0 ? min($seconds, $beforeLast) : $left);
    }

    /**
     * Returns the replies to a command about each key, within the command timeout.
     *
     * @param non-empty-list<string> $keys
     * @return non-empty-list<mixed>
     * @throws LockException
     */
    public function ofEachKey(
        array $keys,
        Call $call,
        string $command,
        #[\SensitiveParameter] string|int ...$words,
    ): array {
        $until = Clock::now() + $this->timeout;
        return $this->retry(fn (float $end) => array_map(
            fn (string $key) => $this->ask($key, [$command, $key, ...$words], $call, $end),
            $keys,
        ), $until);
    }

    /**
     * Sets the lease of a grant, and ties a session to this connection. Returns when the server was
     * asked, or null if not all keys are held.
     *
     * @throws LockException
     */
    public function extend(Options $options, Call $call, float $lease): ?float
    {
        return $this->retry(function (float $end) use ($options, $call, $lease): ?float {
            $askedAt = Clock::now();
            $count = $this->ask($options->keys[0], $options->extend($call->token(), $lease), $call, $end);
            return $count === count($options->keys) ? $askedAt : null;
        }, Clock::now() + $this->timeout);
    }

    /**
     * Sends a release in the time that is left to a call that ends without a grant, later with other
     * calls, and at the program's end. The own connections of a session that got no reply are closed.
     *
     * @param non-empty-list<string|int> $words
     */
    public function leave(string $key, #[\SensitiveParameter] array $words, Call $call, float $until): void
    {
        $this->unreleased[] = [$key, new \SensitiveParameterValue($words), $call, $until];
        $this->goOn();
        if ($this->origin !== null && $this->unreleased !== []) {
            $this->handOver($this->origin);
        }
    }

    /** Sends the releases that got no reply. */
    public function goOn(): void
    {
        $end = Clock::now() + self::LAST_WORDS;
        $this->nextTry = $end + self::PATIENCE;
        // The latest first, because an outage takes the time of the others.
        foreach (array_reverse($this->unreleased, true) as $number => [$key, $words, $call, $until]) {
            try {
                if (Clock::now() < $until) {
                    $this->exchange($key, $words->getValue(), $call, min($until, $end));
                }
            } catch (Unavailable|\LogicException) {
                // Later, also if the program is in a transaction.
                return;
            } catch (LockException) {
                // The server refuses it for good.
            }
            unset($this->unreleased[$number]);
        }
    }

    /** Closes the connections of a session, which ends it, and leaves its release to other connections. */
    private function handOver(self $origin): void
    {
        array_push($origin->unreleased, ...$this->unreleased);
        foreach ([...$this->before, $this->client] as $client) {
            $client?->close();
        }
        [$this->unreleased, $this->before, $this->client] = [[], [], null];
    }

    /** @param non-empty-list<string|int> $words */
    private function exchange(string $key, #[\SensitiveParameter] array $words, Call $call, float $until): mixed
    {
        if ($until <= Clock::now()) {
            throw new Unavailable('no time is left to ask a server', true);
        }
        // It is over for the caller when the handlers of signals have run, which may throw.
        $call->unanswered++;
        $failure = null;
        $reply = Signals::after(function () use ($key, $words, $call, $until, &$failure): mixed {
            try {
                return $this->exchangeUndisturbed($key, $words, $call, $until);
            } catch (\Throwable $failure) {
                return null;
            }
        });
        $call->unanswered--;
        return $failure === null ? $reply : throw $failure;
    }

    /** @param non-empty-list<string|int> $words */
    private function exchangeUndisturbed(
        string $key,
        #[\SensitiveParameter] array $words,
        Call $call,
        float $until,
    ): mixed {
        try {
            $reply = $this->send($key, $words, $call, $until);
            $this->before = [];
            $this->isDown = false;
            return $reply;
        } catch (ErrorReply $error) {
            $exception = $error->exception($this->client?->name() ?? 'the server', $call->token());
            if ($error->isOfConnection()) {
                $this->close();
            }
            throw $exception;
        } catch (Queued) {
            $this->close();
            throw new \LogicException('redis is in a transaction, which the command of a lock ends');
        } catch (\LogicException $misuse) {
            throw $misuse;
        } catch (\Throwable $thrown) {
            $this->close();
            throw $thrown;
        }
    }

    /** @param non-empty-list<string|int> $words */
    private function send(string $key, #[\SensitiveParameter] array $words, Call $call, float $until): mixed
    {
        $client = $this->client($until);
        $client->open($key, $until);
        $prefix = $client->prefix();
        $words = self::prefixed($prefix, $words);
        $call->unanswered++;
        try {
            $reply = $client->exchange($prefix . $key, $words, $call, $until);
        } catch (ErrorReply|Queued|\LogicException $answer) {
            $call->unanswered--;
            throw $answer;
        }
        $call->unanswered--;
        $call->connection = $this->connection;
        return $reply;
    }

    /**
     * Returns a command with the prefix of the program's client before each key.
     *
     * @param non-empty-list<string|int> $words
     * @return non-empty-list<string|int>
     */
    private static function prefixed(string $prefix, #[\SensitiveParameter] array $words): array
    {
        if ($prefix !== '') {
            [$first, $count] = str_starts_with($words[0], 'LOCK.M') ? [2, $words[1]] : [1, 1];
            for ($at = $first; $at < $first + $count; $at++) {
                $words[$at] = $prefix . $words[$at];
            }
        }
        return $words;
    }

    private function client(float $until): Client
    {
        if ($this->process !== getmypid()) {
            $this->abandon();
        }
        return $this->client ??= ($this->make)(min($this->attempt, $until - Clock::now()));
    }

    /** Leaves all connections to the process that forked this one. It may not have used them here. */
    private function abandon(): void
    {
        [$this->process, $this->unreleased, $this->before] = [getmypid(), [], []];
        if (!$this->isMadeAnew) {
            $this->client ??= ($this->make)($this->attempt);
        }
        $this->client?->abandon();
        $this->drop();
    }

    private function patience(): float
    {
        return $this->client?->patience() ?? INF;
    }

    private function close(): void
    {
        if ($this->origin === null) {
            $this->client?->close();
            $this->connection++;
        } elseif ($this->client !== null) {
            // Its close would release the lock.
            $this->before[] = $this->client;
        }
        $this->drop();
    }

    /** Forgets a client that has to be made anew. */
    private function drop(): void
    {
        if ($this->isMadeAnew && $this->client?->findsServers() !== true) {
            $this->client = null;
        }
    }
}
