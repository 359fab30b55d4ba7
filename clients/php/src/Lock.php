<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * One owner of a lock. All times are in seconds. Nothing runs in the background, so a loss is
 * detected only by a call.
 */
final class Lock implements \JsonSerializable
{
    /** Longest time in seconds that withdrawing a command adds to a call. */
    private const WITHDRAWAL = 0.1;

    /** Seconds in which the server's reply about replicas returns. */
    private const RETURN = 0.05;

    private int $holds = 0;
    private ?int $fence = null;
    private bool $lost = false;
    /** The holds of a reentrant lock that were lost and not released since. */
    private int $lostHolds = 0;
    private float $until = 0.0;
    private float $grantedAt = 0.0;
    /** The process whose holds these are. */
    private int $process;
    private \SensitiveParameterValue $token;
    private readonly bool $isTokenNamed;
    /** The server may still release this token, so the next acquire needs another one. */
    private bool $isTokenSpent = false;

    /**
     * @internal Use Locks::lock().
     * @param \WeakMap<Lock, int> $held
     */
    public function __construct(
        private readonly Commands $commands,
        /** Where waits go, because a session is tied to a connection that doesn't wait. */
        private readonly Commands $waits,
        private readonly \WeakMap $held,
        private readonly Options $options,
        #[\SensitiveParameter] ?string $token,
    ) {
        $this->process = getmypid();
        $this->isTokenNamed = $token !== null;
        $this->token = new \SensitiveParameterValue($token ?? self::randomToken());
    }

    /**
     * Acquires the lock and returns the fence, or null if another client held it all the time.
     *
     * @param ?float $wait time limit in seconds; INF sets no limit; null: the option `wait`
     * @throws \InvalidArgumentException|AlreadyHeld|Unavailable|Cancelled|Deadlock|NotReplicated
     * @throws ModuleMissing|ServerError|LockLost the last one if a reentrant lock was lost meanwhile
     */
    public function acquire(?float $wait = null): ?int
    {
        $wait ??= $this->options->wait;
        Options::limit('wait', $wait);
        $holds = $this->holdsAfterAcquire();
        try {
            return $this->run(fn () => $this->acquireWithin($wait, $holds));
        } catch (\Throwable $thrown) {
            if ($this->holds === $holds) {
                // A signal handler threw after the grant.
                Signals::after($this->leave(...));
            }
            throw $thrown;
        }
    }

    /** Tries once. Returns the fence, or null if another client holds the lock. Throws like acquire(). */
    public function tryAcquire(): ?int
    {
        return $this->acquire(0.0);
    }

    /**
     * Acquires the lock, calls the function with the fence, and releases the lock.
     *
     * @template T
     * @param callable(int): T $work
     * @return T
     * @throws NotAcquired|LockLost and what acquire() throws
     */
    public function using(callable $work, ?float $wait = null): mixed
    {
        $fence = $this->acquire($wait);
        if ($fence === null) {
            throw new NotAcquired('another client held the lock for ' . ($wait ?? $this->options->wait) . ' s');
        }
        try {
            $result = $work($fence);
        } catch (\Throwable $thrown) {
            Signals::after($this->leave(...));
            throw $thrown;
        }
        return $this->leave() ? $result : throw new LockLost('the lock was lost before its release');
    }

    /**
     * Removes one hold, and releases the lock with the last one. Returns false if the lock was lost.
     *
     * @throws NotHeld|Unavailable|ServerError|ModuleMissing in any case the object holds it no more
     */
    public function release(): bool
    {
        return $this->run(fn () => $this->releaseUntil(Clock::now() + $this->commands->timeout));
    }

    /**
     * Sets the remaining lease, in seconds. Returns false if the lock was lost.
     *
     * @throws \InvalidArgumentException|NotHeld|Unavailable|ServerError|ModuleMissing the lease stays
     */
    public function extend(float $lease): bool
    {
        Options::duration('lease', $lease);
        if (!$this->isHeld()) {
            return $this->tellNotHeld();
        }
        $words = ['PX', Clock::milliseconds($lease), ...($this->options->session ? ['SESSION'] : [])];
        [$reply, , $sent] = $this->run(fn () => $this->commands->repeat(
            $this->options->keys[0],
            $this->command('EXTEND', $words),
            Clock::now() + $this->commands->timeout,
        ));
        if (!$this->isOfAllKeys($reply)) {
            $this->lose();
            return false;
        }
        $this->until = $sent + $lease;
        return true;
    }

    /**
     * Returns the remaining lease on the server in seconds, or 0 if the lock isn't held.
     *
     * @throws Unavailable|ServerError|ModuleMissing
     */
    public function left(): float
    {
        return $this->run(function (): float {
            $end = Clock::now() + $this->commands->timeout;
            $ask = fn (string $key) => $this->commands->repeat($key, $this->command('CHECK', [], [$key]), $end)[0];
            return min(array_map($ask, $this->options->keys)) / 1000;
        });
    }

    /**
     * Returns what is left of the lease on the local clock in seconds, or 0 if the lock isn't held,
     * without asking the server. The lease of a session has no end there: INF.
     */
    public function remaining(): float
    {
        return match (true) {
            !$this->isHeld() => 0.0,
            $this->options->session => INF,
            default => max(0.0, $this->until - Clock::now()),
        };
    }

    /**
     * Asks the server whether this lock holds its keys now.
     *
     * @throws Unavailable|ServerError|ModuleMissing
     */
    public function owned(): bool
    {
        return $this->left() > 0;
    }

    /** Returns the fence of the latest grant, or null. */
    public function fence(): ?int
    {
        return $this->fence;
    }

    /** Returns the name of the owner. Who knows it can release the lock. */
    public function token(): string
    {
        $this->leaveParent();
        return $this->token->getValue();
    }

    /** Returns the bytes that LOCK.INFO shows, or null. */
    public function data(): ?string
    {
        return $this->options->data;
    }

    /**
     * Returns true if the lock admits other shared holders.
     *
     * @internal
     */
    public function isShared(): bool
    {
        return $this->options->shared;
    }

    /**
     * Returns true if the latest grant is known to be lost, without asking the server. Either the
     * server said so, or the lease has ended on the local monotonic clock. The server renews the
     * lease of a session, so only the server reports its loss.
     */
    public function isLost(): bool
    {
        $this->leaveParent();
        return $this->lost || ($this->holds > 0 && !$this->options->session && Clock::now() >= $this->until);
    }

    /** Releases the lock, if it is held and the option autoRelease is on. */
    public function __destruct()
    {
        $this->releaseAtEnd();
    }

    /** @internal */
    public function releaseAtEnd(): void
    {
        if ($this->options->autoRelease && $this->isHeld()) {
            $this->holds = 1;
            $this->leave();
        }
    }

    /**
     * @internal
     * @return bool false if the lock was lost
     */
    public function releaseWhole(float $until): bool
    {
        $this->holds = min($this->holds, 1);
        return $this->run(fn () => $this->releaseUntil($until));
    }

    /**
     * @internal Use Locks::holders().
     * @return list<Lock>
     */
    public function holders(): array
    {
        return $this->run(function (): array {
            $key = $this->options->keys[0];
            $end = Clock::now() + $this->commands->timeout;
            // A grant that this process has released is not to be found.
            $this->payOwnDebts();
            [$info, , $sent] = $this->commands->repeat($key, ['LOCK.INFO', $key, 'WAITERS', 0], $end);
            $fields = self::fields($info ?? ['holders', []]);
            return array_map(
                fn (array $words) => $this->holder($fields['mode'], self::fields($words), $sent),
                $fields['holders'],
            );
        });
    }

    /** @return array<string, mixed> what var_dump() and print_r() show */
    public function __debugInfo(): array
    {
        return [
            'keys' => $this->options->keys,
            'held' => $this->isHeld(),
            'lost' => $this->isLost(),
            'fence' => $this->fence,
        ];
    }

    /** @return array<string, mixed> */
    public function jsonSerialize(): array
    {
        return $this->__debugInfo();
    }

    private function __clone()
    {
    }

    /** @param array<string, mixed> $fields of a holder in LOCK.INFO */
    private function holder(string $mode, array $fields, float $sent): self
    {
        if ($fields['token'] === null) {
            throw new ServerError('NOPERM the user has no right to write to the key, so the server hides its holders');
        }
        $isLimited = $fields['limit'] > 0;
        $options = $this->options->with(
            lease: $fields['lease-ms'] / 1000,
            shared: $mode === 'shared',
            limit: $isLimited ? $fields['limit'] : null,
            permits: $isLimited ? $fields['permits'] : null,
            autoRelease: false,
            data: $fields['data'] === '' ? null : $fields['data'],
        );
        $holder = new self($this->commands, $this->waits, $this->held, $options, $fields['token']);
        [$holder->holds, $holder->fence] = [1, $fields['fence']];
        $holder->grantedAt = $sent;
        $holder->until = $sent + $options->lease;
        return $holder;
    }

    /**
     * @param list<mixed> $words names and values in turn
     * @return array<string, mixed>
     */
    private static function fields(#[\SensitiveParameter] array $words): array
    {
        $pairs = array_chunk($words, 2);
        return array_combine(array_column($pairs, 0), array_column($pairs, 1));
    }

    private function isHeld(): bool
    {
        return !$this->isLost() && $this->holds > 0;
    }

    /** Makes the copy of this object in a forked process another owner, which holds nothing. */
    private function leaveParent(): void
    {
        if ($this->process === getmypid()) {
            return;
        }
        [$this->process, $this->holds, $this->lostHolds] = [getmypid(), 0, 0];
        $this->lost = $this->isTokenSpent = false;
        $this->renewToken();
    }

    private function holdsAfterAcquire(): int
    {
        if (!$this->isHeld()) {
            if ($this->holds > 0) {
                $this->lose();
            }
            if ($this->lostHolds > 0) {
                throw new LockLost('the lock was lost before it was acquired again');
            }
            return 1;
        }
        if (!$this->options->reentrant) {
            throw new AlreadyHeld('this object holds the lock already; make it with reentrant: true');
        }
        return $this->holds + 1;
    }

    private function acquireWithin(float $wait, int $holds): ?int
    {
        if ($holds > 1) {
            return $this->addHold($wait, $holds);
        }
        $this->prepareToken();
        $began = Clock::now();
        $outcome = 'failed';
        $hasWaited = true;
        try {
            $grant = $wait === 0.0
                ? $this->tryUntil($began + $this->commands->timeout, $holds)
                : $this->waitUntil($began + $wait, $holds, $hasWaited);
            $outcome = $grant === null ? 'not acquired' : 'granted';
            return $grant === null ? null : $this->note($holds, ...$grant);
        } catch (Unfinished $unfinished) {
            $outcome = $unfinished->isInterruption() ? 'cancelled' : 'failed';
            Signals::after(fn () => $this->withdraw($unfinished, $holds - 1));
            throw $unfinished->exception($wait ?: $this->commands->timeout);
        } catch (NotReplicated $thrown) {
            Signals::after(fn () => $this->withdraw(new Unfinished($thrown, [], true), $holds - 1));
            throw $thrown;
        } catch (Cancelled $thrown) {
            $outcome = 'cancelled';
            throw $thrown;
        } finally {
            if ($hasWaited && $wait > 0.0) {
                $this->commands->tell('waited', $this, Clock::now() - $began, $outcome);
            }
        }
    }

    /** Adds a hold to a held lock, which waits for no other holder. */
    private function addHold(float $wait, int $holds): int
    {
        $limit = min($wait ?: INF, $this->commands->timeout);
        try {
            $grant = $this->tryUntil(Clock::now() + $limit, $holds);
        } catch (Unfinished $unfinished) {
            Signals::after(fn () => $this->withdraw($unfinished, $holds - 1));
            throw $unfinished->exception($limit);
        } catch (NotReplicated $thrown) {
            Signals::after(fn () => $this->withdraw(new Unfinished($thrown, [], true), $holds - 1));
            throw $thrown;
        }
        if ($grant === null || $grant[0] !== $this->fence) {
            // The server may have granted the lock anew, or some of the keys.
            $thrown = new LockLost('the lock was lost before it was acquired again');
            $this->lose();
            Signals::after(fn () => $this->withdraw(new Unfinished($thrown, [], true), 0));
            throw $thrown;
        }
        return $this->note($holds, ...$grant);
    }

    /** @return ?array{int, float} the fence, and the time that the lease counts from */
    private function tryUntil(float $end, int $holds): ?array
    {
        $isOwed = $this->commands->owes($this->options->keys);
        // A stopped process may read a grant that is over. So after a slow reply the lock is
        // requested once more. That reply may be slow if the network is.
        foreach ([$this->options->lease / 10, $this->options->lease] as $soon) {
            $command = $this->tryCommand($holds, $end);
            [$grant, , $sent] = $this->commands->repeat($this->options->keys[0], $command, $end);
            if ($grant === null) {
                return $isOwed ? $this->tryAfterDebts($end, $holds) : null;
            }
            if (Clock::now() - $sent < $soon) {
                break;
            }
        }
        return [$grant[1], $sent];
    }

    /**
     * Tries again once an earlier release is made up for, because the holder may have been this
     * process.
     *
     * @return ?array{int, float} like tryUntil()
     */
    private function tryAfterDebts(float $end, int $holds): ?array
    {
        $this->payOwnDebts();
        return $this->tryUntil($end, $holds);
    }

    /** @return ?array{int, float} like tryUntil() */
    private function waitUntil(float $end, int $holds, bool &$hasWaited): ?array
    {
        $key = $this->options->keys[0];
        $check = $this->command('CHECK', [], [$key]);
        $wait = fn () => $this->waitCommand($holds, $end);
        $retries = new Retries();
        $isReported = $isRepeated = false;
        for (;;) {
            $sent = Clock::now();
            try {
                $connection = $this->waits->block($key, $check, $wait(), $this->attempt($end));
                $isReported = false;
                $hasWaited = $isRepeated || !$connection->hasReply();
                // The wait may be for a lock that this process failed to release.
                $this->payOwnDebts();
                $grant = $this->waits->stay($key, $connection, $wait, $end);
                if ($grant !== null) {
                    $isFresh = Clock::now() - $sent < $this->options->lease / 10;
                    $isWhole = !$this->options->session && $this->options->replicas === null;
                    $found = $isFresh && $isWhole ? [$grant[1], $sent] : $this->confirm($end, $holds);
                    if ($found !== null) {
                        return $found;
                    }
                } elseif (Clock::now() >= $end) {
                    // KEEP keeps the place beyond the wait.
                    $cancel = $this->command('CANCEL', [], [$key]);
                    $this->waits->ask($key, $cancel, Clock::now() + self::WITHDRAWAL);
                    return null;
                }
                $isRepeated = true;
            } catch (Unfinished $unfinished) {
                $isRepeated = true;
                if ($end === INF && $unfinished->isOutage() && !$isReported) {
                    $isReported = true;
                    $this->commands->tell('unavailable', $unfinished->exception(INF, '; the wait goes on'));
                }
                $retries->pause($unfinished, $sent, $end);
            }
        }
    }

    private function payOwnDebts(): void
    {
        Signals::after(fn () => $this->commands->payDebtsOf($this->options->keys));
    }

    /**
     * Requests what was granted again: because the grant came late, to tie it to the session, or to
     * wait for replicas.
     *
     * @return ?array{int, float} null if it was lost meanwhile
     */
    private function confirm(float $end, int $holds): ?array
    {
        return $this->tryUntil($this->attempt(max($end, Clock::now())), $holds);
    }

    /** Returns the time limit of one attempt of a wait. */
    private function attempt(float $end): float
    {
        return min($end + Commands::GRACE, Clock::now() + $this->commands->timeout);
    }

    private function note(int $holds, int $fence, float $sent): int
    {
        if ($holds === 1) {
            $this->grantedAt = $sent;
        }
        $this->holds = $holds;
        $this->lost = false;
        $this->until = $sent + $this->options->lease;
        $this->fence = $fence;
        $this->held[$this] = $this->process;
        $this->commands->tell('granted', $this);
        return $fence;
    }

    private function releaseUntil(float $until): bool
    {
        if (!$this->isHeld()) {
            $wasHeld = $this->holds > 0;
            $isFalse = $this->tellNotHeld();
            $this->lostHolds = max(0, $this->lostHolds - 1);
            if ($wasHeld) {
                // Some of the keys may still be held.
                $this->isTokenSpent = true;
                $this->oweRelease();
                $this->commands->payDebts();
            }
            return $isFalse;
        }
        $holds = --$this->holds;
        $rest = $holds === 0 ? $this->options->atLeast - (Clock::now() - $this->grantedAt) : 0.0;
        if ($holds === 0) {
            unset($this->held[$this]);
            $this->isTokenSpent = $rest > 0;
        }
        $command = $rest > 0 ? $this->keepCommand($rest) : $this->command('RELEASE', ['HOLDS', $holds]);
        try {
            [$reply, $again] = $this->commands->repeat($this->options->keys[0], $command, $until);
            // An earlier release may still be on its way to the server.
            $this->isTokenSpent = $this->isTokenSpent || ($again && $holds === 0);
        } catch (Unfinished $unfinished) {
            if ($holds === 0) {
                $this->isTokenSpent = true;
                $rest > 0 ?: $this->oweRelease();
            }
            throw $unfinished->exception($this->commands->timeout, $this->ending());
        }
        // If a reply was lost, the command before may have released the lock.
        if ($this->isOfAllKeys($reply) || ($again && $holds === 0 && !$this->options->session)) {
            return true;
        }
        $this->lose();
        return false;
    }

    /** Releases one hold. An error goes to the observer. Returns false if the lock was lost. */
    private function leave(): bool
    {
        $this->leaveParent();
        if ($this->holds === 0) {
            // It was lost, or the work of using() released it.
            $this->lostHolds = max(0, $this->lostHolds - 1);
            return !$this->lost;
        }
        try {
            return $this->release();
        } catch (LockException $error) {
            $this->commands->tell('unavailable', $error);
            return true;
        }
    }

    /** Says false after a loss. */
    private function tellNotHeld(): bool
    {
        if ($this->holds > 0) {
            $this->lose();
        }
        return $this->lost ? false : throw new NotHeld("this object hasn't acquired the lock");
    }

    private function lose(): void
    {
        $this->lostHolds = $this->options->reentrant ? $this->holds : 0;
        $this->holds = 0;
        $this->lost = true;
        unset($this->held[$this]);
        $this->commands->tell('lost', $this);
    }

    /**
     * Gives up a command that may still be executed, and releases all but $holds. CANCEL goes
     * first, so no grant can follow. If a signal handler forked, the command is the parent's.
     */
    private function withdraw(Unfinished $unfinished, int $holds): void
    {
        if (!$unfinished->mayHaveRun || $this->process !== getmypid()) {
            return;
        }
        $cancel = $this->command('CANCEL', [], [$this->options->keys[0]]);
        $release = $this->command('RELEASE', ['HOLDS', $holds]);
        $key = $this->options->keys[0];
        if (!$unfinished->isOutage()) {
            $until = Clock::now() + self::WITHDRAWAL;
            try {
                $this->waits->ask($key, $cancel, $until);
                foreach ($unfinished->connections as $connection) {
                    $connection->drain($until);
                    $this->waits->giveBack($connection);
                }
                $this->commands->ask($key, $release, $until);
                return;
            } catch (Unfinished|Outage|LockException) {
            }
        }
        $isSent = $unfinished->connections !== [];
        foreach ($unfinished->connections as $connection) {
            $isSent = $connection->abandon([$cancel, $release]) && $isSent;
        }
        if ($holds === 0) {
            $this->isTokenSpent = true;
            $this->oweRelease();
            $isSent ?: $this->commands->payDebts();
        }
    }

    private function oweRelease(): void
    {
        $end = max($this->until, Clock::now() + max($this->options->lease, $this->options->keep));
        foreach ($this->options->keys as $key) {
            $commands = [$this->command('CANCEL', [], [$key]), $this->command('RELEASE', ['ALL'], [$key])];
            $this->commands->owe($this->debtName($key), $key, $commands, $end);
        }
    }

    /** Returns a name for each token and key, because another lock may have the same token. */
    private function debtName(string $key): string
    {
        return hash('sha256', $this->token()) . $key;
    }

    /** Takes a new token if the server may still execute a release of the one before. */
    private function prepareToken(): void
    {
        if ($this->isTokenSpent) {
            $this->renewToken();
        }
        foreach ($this->options->keys as $key) {
            $this->commands->forgive($this->debtName($key));
        }
        $this->isTokenSpent = false;
    }

    /** Takes a new token, unless the caller chose the token. */
    private function renewToken(): void
    {
        if (!$this->isTokenNamed) {
            $this->token = new \SensitiveParameterValue(self::randomToken());
        }
    }

    private static function randomToken(): string
    {
        return bin2hex(random_bytes(16));
    }

    /**
     * Runs what a call does, at whose safe points signals are handled.
     *
     * @template T
     * @param \Closure(): T $work
     * @return T
     */
    private function run(\Closure $work): mixed
    {
        try {
            return Signals::atSafePoints($work);
        } catch (Unfinished $unfinished) {
            throw $unfinished->exception($this->commands->timeout);
        } catch (ServerError $error) {
            throw new ServerError(str_replace($this->token(), '(token)', $error->getMessage()));
        }
    }

    private function isOfAllKeys(mixed $reply): bool
    {
        return $reply === count($this->options->keys);
    }

    private function ending(): string
    {
        $left = $this->options->session ? $this->options->lease : $this->until - Clock::now();
        return '; the lock ends with its lease, in ' . max(0, (int) ceil($left)) . ' s at the latest';
    }

    /** @return list<string|int> */
    private function tryCommand(int $holds, float $end): array
    {
        $replicas = $this->options->replicas;
        $within = max(0.0, $end - Clock::now() - self::RETURN);
        return $this->command('ACQUIRE', [
            ...$this->options->words($holds),
            ...($this->options->session ? ['SESSION'] : []),
            ...($replicas === null ? [] : ['REPLICAS', $replicas, 'WITHIN', Clock::milliseconds($within)]),
        ]);
    }

    /** @return list<string|int> */
    private function waitCommand(int $holds, float $end): array
    {
        return $this->command('WAIT', [
            ...$this->options->words($holds),
            'KEEP', Clock::milliseconds($this->options->keep),
            ...($end === INF ? [] : ['BLOCK', Clock::milliseconds(max(0.0, $end - Clock::now()))]),
        ]);
    }

    /** @return list<string|int> what stands in for a release until atLeast is over */
    private function keepCommand(float $rest): array
    {
        $words = ['PX', Clock::milliseconds($rest), ...($this->options->session ? ['NOSESSION'] : [])];
        return $this->command('EXTEND', $words);
    }

    /**
     * @param list<string|int> $words behind the token
     * @param ?non-empty-list<string> $keys all keys by default
     * @return non-empty-list<string|int>
     */
    private function command(string $name, array $words, ?array $keys = null): array
    {
        $keys ??= $this->options->keys;
        $start = count($keys) > 1 ? ["LOCK.M$name", count($keys)] : ["LOCK.$name"];
        return [...$start, ...$keys, $this->token(), ...$words];
    }
}
