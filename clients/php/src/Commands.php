<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * Sends commands to the server of their key, on connections that are kept for the next commands.
 *
 * @internal
 */
final class Commands
{
    /** Most redirections of one command. */
    private const REDIRECTIONS = 5;

    /** Seconds after which a wait proves that the server is alive. */
    private const PROOF = 2.5;

    /** Seconds that the reply at the end of a wait may be late. */
    public const GRACE = 0.15;

    /** Seconds that a call spends on earlier debts. */
    private const PAYMENT = 0.1;

    /** @var array<string, list<Connection>> by server */
    private array $idle = [];
    /** @var array<string, array{string, \SensitiveParameterValue, float}> key, commands, and their end */
    private array $debts = [];
    private float $nextPayment = 0.0;
    private int $process;

    public function __construct(
        private readonly Servers $servers,
        /** Time limit in seconds of every call that doesn't wait for a lock. */
        public readonly float $timeout,
        private readonly Observer $observer,
    ) {
        $this->process = getmypid();
    }

    /** Returns the same with connections of its own, to which a session can be tied. */
    public function apart(): self
    {
        return new self($this->servers, $this->timeout, $this->observer);
    }

    /** Calls a hook of the observer. */
    public function tell(string $hook, mixed ...$what): void
    {
        try {
            $this->observer->$hook(...$what);
        } catch (\Throwable) {
            // A hook doesn't change what a call does.
        }
    }

    /**
     * Sends a command once, and returns its reply.
     *
     * @param list<string|int> $command
     * @throws Unfinished|LockException
     */
    public function ask(string $key, #[\SensitiveParameter] array $command, float $until): mixed
    {
        [$connection, $reply] = $this->begin($key, [$command], $until);
        return $this->result($key, $connection, $reply);
    }

    /**
     * Sends a command until there is a reply, or the time is over.
     *
     * @param list<string|int> $command
     * @return array{mixed, bool, float} the reply; true if it was sent before; when it was sent
     * @throws Unfinished|LockException
     */
    public function repeat(string $key, #[\SensitiveParameter] array $command, float $until): array
    {
        $retries = new Retries();
        for ($again = false; ; $again = true) {
            $sent = Clock::now();
            try {
                return [$this->ask($key, $command, $until), $again, $sent];
            } catch (Unfinished $unfinished) {
                $retries->pause($unfinished, $sent, $until);
            }
        }
    }

    /**
     * Sends a command that is replied to at once, and behind it one that blocks. Returns the
     * connection after the first reply, which proves that the server is alive.
     *
     * @param list<string|int> $first
     * @param list<string|int> $blocking
     * @throws Unfinished|LockException
     */
    public function block(
        string $key,
        #[\SensitiveParameter] array $first,
        #[\SensitiveParameter] array $blocking,
        float $until,
    ): Connection {
        [$connection, $reply] = $this->begin($key, [$first, $blocking], $until);
        if ($reply instanceof ErrorReply) {
            throw $this->unfinished($reply->exception($connection->server), [$connection]);
        }
        return $connection;
    }

    /**
     * Returns the reply to a command that blocks. As a proof of life the command is sent on another
     * connection from time to time, which takes the wait over.
     *
     * @param \Closure(): list<string|int> $blocking
     * @throws Unfinished|LockException
     */
    public function stay(string $key, Connection $connection, \Closure $blocking, float $end): mixed
    {
        $connections = [$connection];
        try {
            while (!$connection->answers(min(Clock::now() + self::PROOF, $end + self::GRACE))) {
                $within = min(Clock::now() + $this->timeout, $end + self::GRACE);
                if (!$this->servers->isCurrent($connection->server, $within)) {
                    throw new Outage("$connection->server is not the primary any more");
                }
                $connections[] = $next = $this->take($connection->server, $within);
                $next->send([$blocking()], $within);
                $reply = $connection->receive($within);
                if ($reply instanceof ErrorReply && !$reply->isTakenOver()) {
                    throw $this->failure($key, $connection->server, $reply);
                }
                // A grant is the other connection's grant as well.
                $this->giveBack($connection);
                $connections = [$connection = $next];
            }
            $reply = $connection->receive($end);
        } catch (\Throwable $thrown) {
            throw $this->unfinished($thrown, $connections);
        }
        return $this->result($key, $connection, $reply);
    }

    /** Keeps a connection without unread replies for the next command. */
    public function giveBack(Connection $connection): void
    {
        $this->idle[(string) $connection->server][] = $connection;
    }

    /**
     * Sends commands when a server replies again, or at the end of the program.
     *
     * @param string $name a later debt of the same name replaces this one
     * @param list<list<string|int>> $commands
     */
    public function owe(string $name, string $key, #[\SensitiveParameter] array $commands, float $until): void
    {
        $this->debts[$name] = [$key, new \SensitiveParameterValue($commands), $until];
    }

    public function forgive(string $name): void
    {
        unset($this->debts[$name]);
    }

    /**
     * Returns true if commands are owed for one of the keys.
     *
     * @param list<string> $keys
     */
    public function owes(array $keys): bool
    {
        return $this->debtsOf($keys) !== [];
    }

    /**
     * Pays the debts for these keys.
     *
     * @param list<string> $keys
     */
    public function payDebtsOf(array $keys): void
    {
        $this->pay($this->debtsOf($keys));
    }

    /** Pays the debts, at most once a second. */
    public function payDebts(): void
    {
        // perf: each try takes PAYMENT while a server is gone.
        if (Clock::now() >= $this->nextPayment) {
            $this->pay($this->debts);
        }
    }

    public function __destruct()
    {
        $this->pay($this->debts);
    }

    /**
     * @param list<string> $keys
     * @return array<string, array{string, \SensitiveParameterValue, float}> like $debts
     */
    private function debtsOf(array $keys): array
    {
        return array_filter($this->debts, fn (array $debt) => in_array($debt[0], $keys, true));
    }

    /** @param array<string, array{string, \SensitiveParameterValue, float}> $debts some of $debts */
    private function pay(array $debts): void
    {
        if ($debts === [] || $this->process !== getmypid()) {
            return;
        }
        $now = Clock::now();
        $this->nextPayment = $now + 1.0;
        foreach ($debts as $name => [$key, $commands, $until]) {
            try {
                if ($now < $until) {
                    $this->payWith($commands->getValue(), $key, $now + self::PAYMENT);
                }
            } catch (Unfinished|Outage) {
                return;
            }
            unset($this->debts[$name]);
        }
    }

    /**
     * Sends owed commands together, so that the server executes all of them though its replies may be
     * late. A command that it refuses is sent alone, because ASKING is for one command.
     *
     * @param non-empty-list<list<string|int>> $commands
     * @throws Unfinished|Outage
     */
    private function payWith(#[\SensitiveParameter] array $commands, string $key, float $until): void
    {
        [$connection, $reply] = $this->begin($key, $commands, $until);
        for ($replies = [$reply]; count($replies) < count($commands);) {
            $replies[] = $connection->receive($until);
        }
        $this->giveBack($connection);
        foreach ($replies as $at => $reply) {
            if ($reply instanceof ErrorReply) {
                $this->payWithOne($commands[$at], $key, $until);
            }
        }
    }

    /**
     * Sends an owed command, and drops it if the server refuses it for good.
     *
     * @param list<string|int> $command
     * @throws Unfinished
     */
    private function payWithOne(#[\SensitiveParameter] array $command, string $key, float $until): void
    {
        try {
            $this->ask($key, $command, $until);
        } catch (LockException) {
        }
    }

    /**
     * Sends commands to the server of a key, and follows redirections.
     *
     * @param non-empty-list<list<string|int>> $commands
     * @return array{Connection, mixed} the reply to the first command, and its connection
     * @throws Unfinished
     */
    private function begin(string $key, #[\SensitiveParameter] array $commands, float $until): array
    {
        $connections = [];
        try {
            $server = $this->servers->of($key, $until);
            $asking = [];
            for ($hop = 0; $hop <= self::REDIRECTIONS; $hop++) {
                $connections = [];
                $connections[] = $connection = $this->take($server, $until);
                $connection->send([...$asking, ...$commands], $until);
                if ($asking !== []) {
                    $connection->receive($until);
                }
                $reply = $connection->receive($until);
                $redirection = $reply instanceof ErrorReply ? $reply->redirection() : null;
                if ($redirection === null) {
                    return [$connection, $reply];
                }
                $connection->drain($until);
                $this->giveBack($connection);
                [$kind, $host, $port] = $redirection;
                $asking = $kind === 'ASK' ? [['ASKING']] : [];
                $server = $kind === 'ASK'
                    ? $server->at($host === '' ? $server->host : $host, $port)
                    : $this->servers->moved($key, $server, $host, $port);
            }
            throw new Outage("the cluster doesn't settle on a node for the key");
        } catch (\Throwable $thrown) {
            throw $this->unfinished($thrown, $connections, $server ?? null);
        }
    }

    /** Returns a reply, or throws what an error reply says. */
    private function result(string $key, Connection $connection, mixed $reply): mixed
    {
        if ($reply instanceof ErrorReply) {
            $failure = $this->failure($key, $connection->server, $reply);
            if ($failure instanceof Outage) {
                throw $this->unfinished($failure, [], $connection->server);
            }
        }
        $this->giveBack($connection);
        if ($reply instanceof ErrorReply) {
            throw $failure;
        }
        Signals::after($this->payDebts(...));
        return $reply;
    }

    private function failure(string $key, Server $server, ErrorReply $reply): Outage|LockException
    {
        $redirection = $reply->redirection();
        if ($redirection === null) {
            return $reply->exception($server);
        }
        $this->servers->moved($key, $server, $redirection[1], $redirection[2]);
        return new Outage("$server: the slot of the key moved");
    }

    /** @param list<Connection> $connections */
    private function unfinished(\Throwable $reason, array $connections, ?Server $server = null): Unfinished
    {
        $server ??= $connections === [] ? null : $connections[0]->server;
        if ($reason instanceof Outage && $server !== null) {
            $this->servers->failed($server);
            unset($this->idle[(string) $server]);
        }
        return new Unfinished($reason, $connections, $connections !== []);
    }

    private function take(Server $server, float $until): Connection
    {
        if ($this->process !== getmypid()) {
            // The connections and debts are those of the process that forked this one.
            [$this->process, $this->idle, $this->debts] = [getmypid(), [], []];
        }
        while (($this->idle[(string) $server] ?? []) !== []) {
            $connection = array_pop($this->idle[(string) $server]);
            if ($connection->isReady()) {
                return $connection;
            }
        }
        return new Connection($server, $until);
    }
}
