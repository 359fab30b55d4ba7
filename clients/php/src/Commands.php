<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * Sends the commands of a factory's locks, and again after an outage.
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

    /** Seconds of one attempt. There is time for another one. */
    public readonly float $attempt;
    /** @var array<int, \WeakReference<Grant>> the grants that are held, by the numbers of the objects */
    public array $held = [];
    private bool $isDown = false;
    /** @var array<int, list<array{\SensitiveParameterValue, float}>> releases by process, and their ends */
    private array $unreleased = [];
    private float $nextTry = 0.0;

    public function __construct(
        public readonly Connection $connection,
        public readonly float $timeout,
        private readonly Observer $observer,
    ) {
        $this->attempt = max(min($timeout, 1.0), $timeout / 3);
    }

    /** Returns the same with a connection for one session, if the program's function can make one. */
    public function ofSession(): self
    {
        return new self($this->connection->forSession(), $this->timeout, $this->observer);
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
    public function ask(#[\SensitiveParameter] array $words, Call $call, float $until): mixed
    {
        $reply = $this->connection->exchange($words, $call, $until);
        $this->isDown = false;
        if (Clock::now() >= $this->nextTry) {
            $this->goOn();
        }
        return $reply;
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
        for ($pause = self::FIRST_PAUSE; ; $pause = min(2 * $pause, self::LONGEST_PAUSE)) {
            try {
                return $act(min($until, Clock::now() + $this->attempt));
            } catch (Unavailable $fault) {
                $this->pause($pause, $until);
            }
            if (Clock::now() >= $until) {
                throw $fault;
            }
        }
    }

    /** Pauses before the next try, or until the end if that leaves it too little time. */
    public function pause(float $seconds, float $until): void
    {
        [$left, $patience] = [$until - Clock::now(), $this->connection->patience()];
        $isTooLate = $left - $seconds <= ($patience === INF ? 0.0 : $patience);
        usleep((int) ceil(max(0.0, $isTooLate ? $left : $seconds) * 1e6));
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
        return $this->retry(fn (float $end) => array_map(
            fn (string $key) => $this->ask([$command, $key, ...$words], $call, $end),
            $keys,
        ), Clock::now() + $this->timeout);
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
            if ($options->session && $this->connection->hasClosed($call)) {
                return null;
            }
            $askedAt = Clock::now();
            $count = $this->ask($options->extend($call, $lease), $call, $end);
            return $count === count($options->keys) ? $askedAt : null;
        }, Clock::now() + $this->timeout);
    }

    /**
     * Sends a release in the time that is left to a call that ends without a grant, later with other
     * calls, and at the program's end.
     *
     * @param non-empty-list<string|int> $words
     */
    public function leave(#[\SensitiveParameter] array $words, float $until): void
    {
        $this->unreleased[getmypid()][] = [new \SensitiveParameterValue($words), $until];
        $this->goOn();
    }

    /** Sends the releases that got no reply. A connection that was lost may cost the first try. */
    public function goOn(): void
    {
        $end = Clock::now() + self::LAST_WORDS;
        $this->nextTry = $end + self::PATIENCE;
        $isDue = fn (array $release) => $release[1] > Clock::now();
        // The handler of a signal may add to them, or send them, meanwhile.
        $this->unreleased = [getmypid() => array_filter($this->unreleased[getmypid()] ?? [], $isDue)];
        // The latest first, because an outage takes the time of the others.
        foreach (array_reverse($this->unreleased[getmypid()], true) as $number => [$words]) {
            try {
                $send = fn (float $by) => $this->connection->exchange($words->getValue(), new Call(), $by);
                $this->retry($send, $end);
            } catch (Unavailable|\LogicException) {
                // Later, also if the program is in a transaction.
                return;
            } catch (LockException) {
                // The server refuses it for good.
            }
            unset($this->unreleased[getmypid()][$number]);
        }
    }
}
