<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * One acquire: it asks, it waits, and it leaves if it ends without a grant.
 *
 * @internal
 */
final class Acquire
{
    /** Seconds after the limit of a wait in which a reply still counts. */
    private const GRACE = 0.1;
    /** The longest time in seconds without a sign that the server lives. */
    private const SIGN_OF_LIFE = 2.0;
    /** Seconds for which a token that has no command on its way is turned away. */
    private const SHORTEST_LEAVE = 0.001;

    private Call $call;
    /** True if the token may hold the lock already. */
    private readonly bool $isHolder;
    private readonly bool $isTry;
    private readonly float $until;
    /** True if the latest reply was "not now", and nothing failed since. */
    private bool $isRefused = false;
    /** True if the server may have a place or a grant of this token. */
    private bool $isKnown = false;
    /** True if the lock wasn't granted at once. */
    public bool $hasWaited = false;

    /**
     * @param ?string $token one that may hold the lock already, and keeps it; null: it is drawn
     * @param float $limit seconds; 0 asks without waiting
     */
    public function __construct(
        private readonly Commands $commands,
        private readonly Options $options,
        #[\SensitiveParameter] ?string $token,
        float $limit,
    ) {
        $this->call = new Call($token ?? bin2hex(random_bytes(16)));
        $this->isHolder = $token !== null;
        $this->isTry = $limit === 0.0;
        $this->until = Clock::now() + ($limit ?: $commands->timeout);
    }

    /**
     * Returns the grant, or null if the server said "not now" until the limit.
     *
     * @throws LockException
     */
    public function run(): ?Grant
    {
        try {
            $grant = $this->askUntilGranted();
        } catch (\Throwable $thrown) {
            // Also what the handler of a signal threw.
            $this->leave();
            throw $thrown;
        }
        if ($grant === null) {
            $this->leave();
        }
        return $grant;
    }

    private function askUntilGranted(): ?Grant
    {
        $fault = new Unavailable('no time is left to ask a server');
        for ($pause = Commands::FIRST_PAUSE; ($askedAt = Clock::now()) < $this->until; ) {
            try {
                $reply = $this->ask($askedAt);
                $this->isRefused = $reply === null;
                $isLate = Clock::now() - $askedAt > $this->options->lease / 3;
                $grant = $reply === null || $isLate ? null : $this->granted($reply[1], $askedAt);
                $pause = Commands::FIRST_PAUSE;
            } catch (Unavailable $fault) {
                if ($this->isRefused && Clock::now() >= $this->until) {
                    return null;
                }
                $this->isRefused = false;
                $this->hasWaited = true;
                if ($this->until === INF) {
                    $this->commands->report($fault);
                }
                $this->commands->pause($pause, $this->until);
                $pause = min(2 * $pause, Commands::LONGEST_PAUSE);
                continue;
            }
            if ($grant !== null) {
                return $grant;
            }
            if ($reply === null) {
                $this->hasWaited = !$this->isTry;
                if ($this->isTry) {
                    return null;
                }
            } elseif ($isLate) {
                // The grant may be over. If it isn't, the server sets its lease anew.
                $fault = new Unavailable('the grant came too late');
            }
        }
        return $this->isRefused ? null : throw $fault;
    }

    /** Asks once, and notes whether the server may know this token afterwards. */
    private function ask(float $askedAt): ?array
    {
        [$options, $call, $commands] = [$this->options, $this->call, $this->commands];
        // A server may wait for the lock, and then for replicas.
        [$left, $longest] = [$this->until - $askedAt, 0.4 * $commands->connection->patience()];
        $within = $options->replicas === null ? 0.0 : min($commands->timeout, $longest);
        $longest = min(self::SIGN_OF_LIFE, $options->lease / 3, $longest, Signals::longestSlice());
        $block = $this->isTry || !$this->hasWaited ? 0.0 : min($longest, $left);
        // A slice of a wait is shorter than an attempt.
        $by = $askedAt + $commands->attempt + max(0.0, $block - Signals::SLICE);
        $end = min($by, $this->until + ($this->isTry ? 0.0 : self::GRACE)) + $within;
        // The handler of a signal may throw after the reply came. After NotReplicated it holds, too.
        [$wasKnown, $this->isKnown] = [$this->isKnown, true];
        try {
            $reply = $commands->ask($options->ask($call, $block, $left, $within), $call, $end);
        } catch (Unavailable|ServerError|ModuleMissing|Deadlock $failure) {
            $this->isKnown = $wasKnown;
            throw $failure;
        }
        if ($reply !== null && ($reply[0] ?? null) !== $call->token()) {
            // Another part of the program or another process uses this connection.
            $call->unanswered++;
            $commands->connection->close();
            throw new Unavailable('the reply to another command came');
        }
        $this->isKnown = $reply !== null || ($block > 0.0 && $block < $left);
        return $reply;
    }

    /** Returns the grant, or null if a session was lost before it was tied to its connection. */
    private function granted(int $fence, float $askedAt): ?Grant
    {
        [$lent, $call, $isUnclear] = [$this->commands, $this->call, $this->call->unanswered > 0];
        if ($this->options->session) {
            [$lent, $call] = [$lent->ofSession(), new Call($call->token())];
            $askedAt = $this->tied($lent, $call);
        }
        $holder = new Holder($this->commands, $lent, $this->options, $call, $fence, $isUnclear);
        return $askedAt === null ? null : new Grant($holder, $askedAt);
    }

    /** Ties a session to a connection. Returns when the server was asked, or null if it was lost. */
    private function tied(Commands $lent, Call $call): ?float
    {
        $askedAt = Clock::now();
        $end = min($askedAt + $lent->attempt, $this->until + self::GRACE);
        try {
            $count = $lent->ask($this->options->extend($call, $this->options->lease), $call, $end);
            return $count === count($this->options->keys) ? $askedAt : null;
        } catch (Unavailable $fault) {
            // A tie that comes late would move the session to a closed connection.
            $this->leave();
            [$this->call, $this->isKnown] = [new Call(bin2hex(random_bytes(16))), false];
            throw $fault;
        }
    }

    /** Ends what the server may have of this token. A command before may be executed late. */
    private function leave(): void
    {
        [$options, $call] = [$this->options, $this->call];
        $isUnclear = $this->call->unanswered > 0;
        if ($this->isKnown || $isUnclear) {
            $time = $isUnclear ? $options->longestTrace : self::SHORTEST_LEAVE;
            $words = $this->isHolder ? $options->cancel($call) : $options->release($call, $time);
            $this->commands->leave($words, Clock::now() + $options->longestTrace);
        }
    }
}
