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
    /** Seconds after the limit in which a reply still counts. */
    private const GRACE = 0.1;
    /** The longest time in seconds without a sign that the server lives. */
    private const SIGN_OF_LIFE = 2.0;
    /** Seconds for which a token that has no command on its way is turned away. */
    private const SHORTEST_LEAVE = 0.001;

    private readonly Call $call;
    private readonly bool $isTry;
    private readonly float $until;
    /** True if the latest reply was "not now", and nothing failed since. */
    private bool $isRefused = false;
    /** True if the server may have a place or a grant of this token. */
    private bool $isKnown = false;
    /** The grant, for an acquire that fails after it. */
    private ?Grant $grant = null;
    /** True if the lock wasn't granted at once. */
    public bool $hasWaited = false;

    /**
     * @param float $limit seconds; 0 asks without waiting
     * @param \WeakMap<Grant, true> $held
     * @param bool $isTokenDrawn false if the token may hold the lock already, and keeps it
     */
    public function __construct(
        private readonly Commands $commands,
        private readonly Options $options,
        private readonly \WeakMap $held,
        #[\SensitiveParameter] string $token,
        float $limit,
        private readonly bool $isTokenDrawn,
    ) {
        $this->call = new Call($token);
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
            $this->grant?->abandon();
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
        $cause = null;
        for ($pause = Commands::FIRST_PAUSE; ; ) {
            $askedAt = Clock::now();
            if ($askedAt >= $this->until) {
                return $this->isRefused
                    ? null
                    : throw $cause ?? new Unavailable('no time is left to ask a server', true);
            }
            try {
                $reply = $this->ask($askedAt);
            } catch (Unavailable $fault) {
                if ($fault->isLate && $this->isRefused && Clock::now() >= $this->until) {
                    return null;
                }
                $this->isRefused = false;
                $this->hasWaited = true;
                if ($this->until === INF) {
                    $this->commands->report($fault);
                }
                // A last try that had little time says nothing about the cause.
                $cause = $cause === null || $this->until - $askedAt > Commands::FIRST_PAUSE ? $fault : $cause;
                $this->commands->pause($pause, $this->until, $fault);
                $pause = min(2 * $pause, Commands::LONGEST_PAUSE);
                continue;
            }
            $pause = Commands::FIRST_PAUSE;
            if (is_array($reply)) {
                if (Clock::now() - $askedAt <= $this->options->lease / 3) {
                    return $this->granted($reply, $askedAt);
                }
                // The grant may be over. If it isn't, the server sets its lease anew.
                $cause = new Unavailable('the grant came too late', true);
                continue;
            }
            $this->isRefused = true;
            if ($this->isTry) {
                return null;
            }
            $this->hasWaited = true;
        }
    }

    /** Asks once, and notes whether the server may know this token afterwards. */
    private function ask(float $askedAt): mixed
    {
        [$wasKnown, $this->isKnown] = [$this->isKnown, true];
        $unanswered = $this->call->unanswered;
        $within = $this->options->replicas === null ? 0.0 : $this->commands->longestReplication();
        [$left, $by] = [$this->until - $askedAt, $askedAt + $this->commands->attempt + $within];
        $end = $this->until + ($this->isTry && $within === 0.0 ? 0.0 : self::GRACE + $within);
        $keepsPlace = false;
        if ($this->isTry || !$this->hasWaited) {
            $words = $this->options->acquire($this->call->token(), $within);
        } else {
            $longest = min(self::SIGN_OF_LIFE, $this->options->lease / 3, $this->commands->longestBlock());
            $block = min($longest, $left);
            $words = $this->options->waitFor($this->call->token(), $block, $left, $within);
            // A slice of a wait is shorter than an attempt.
            [$by, $keepsPlace] = [$by + max(0.0, $block - Commands::SLICE), $block < $left];
        }
        try {
            $reply = $this->commands->ask($this->options->keys[0], $words, $this->call, min($by, $end));
            if ($reply !== null && ($reply[0] ?? null) !== $this->call->token()) {
                $this->commands->refuse($this->call);
            }
        } catch (LockException $thrown) {
            if ($this->call->unanswered === $unanswered && !$thrown instanceof NotReplicated) {
                $this->isKnown = $wasKnown;
            }
            throw $thrown;
        }
        // A command before may be executed after this one.
        $this->isKnown = is_array($reply) || $keepsPlace || $this->call->unanswered > 0;
        return $reply;
    }

    /** @param array{string, int} $reply */
    private function granted(#[\SensitiveParameter] array $reply, float $askedAt): Grant
    {
        [$options, $commands, $call] = [$this->options, $this->commands, $this->call];
        if ($options->session) {
            [$commands, $call] = [$commands->ofSession(), new Call($call->token())];
            $askedAt = $commands->extend($options, $call, $options->lease)
                ?? throw new LockLost('the lock was lost before it was tied to its connection');
        }
        $isUnclear = $this->call->unanswered > 0;
        return $this->grant =
            new Grant($commands, $options, $this->held, $call, (int) $reply[1], $askedAt, $isUnclear);
    }

    /** Ends what the server may have of this token. */
    private function leave(): void
    {
        if ($this->isKnown) {
            $seconds = $this->call->unanswered > 0 ? $this->options->longestTrace : self::SHORTEST_LEAVE;
            $words = $this->isTokenDrawn
                ? $this->options->leave($this->call->token(), $seconds)
                : $this->options->cancel($this->call->token());
            $until = Clock::now() + $this->options->longestTrace;
            $this->commands->leave($this->options->keys[0], $words, new Call($this->call->token()), $until);
        }
    }
}
