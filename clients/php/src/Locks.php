<?php

declare(strict_types=1);

namespace RedisLock;

/** Factory of locks over the program's own client of phpredis or Predis. */
final class Locks
{
    private readonly Commands $commands;

    /**
     * @param \Redis|\RedisCluster|\Predis\ClientInterface|\Closure $redis the client, or a function that
     *     makes and connects one within so many seconds. The function is called for the first command,
     *     and after each outage.
     * @param float $commandTimeout seconds after which a call that doesn't wait for a lock throws
     *     Unavailable
     * @throws \InvalidArgumentException
     */
    public function __construct(
        #[\SensitiveParameter] \Redis|\RedisCluster|\Predis\ClientInterface|\Closure $redis,
        float $commandTimeout = 1.0,
        Observer $observer = new Observer(),
    ) {
        Options::duration('commandTimeout', $commandTimeout);
        $this->commands = new Commands(new Connection($redis), $commandTimeout, $observer);
        $commands = \WeakReference::create($this->commands);
        // PHP runs no destructors after an exception that the program doesn't catch.
        register_shutdown_function(static function () use ($commands): void {
            foreach ($commands->get()->held ?? [] as $grant) {
                $grant->get()?->releaseAtEnd();
            }
            $commands->get()?->goOn();
        });
    }

    /**
     * Returns a lock. Sends nothing.
     *
     * @param string|non-empty-list<string> $keys granted together or not at all; in a cluster, in
     *     one slot
     * @param float $lease seconds for which the lock is granted
     * @param float $wait seconds for which acquire() waits; INF: without a limit
     * @param bool $shared true if other shared holders are admitted
     * @param ?int $limit most permits that all holders take together: a semaphore
     * @param ?int $permits permits that this holder takes; 1 by default
     * @param bool $session the server renews the lease until the connection closes, and then
     *     releases the lock
     * @param float $keep seconds for which the server keeps the place of a waiter that it doesn't hear of
     * @param ?float $margin seconds before the end of the lease at which the lock counts as lost; a
     *     tenth of the lease by default, and at most 1
     * @param float $atLeast seconds since the grant for which the lock stays after its release
     * @param ?string $data at most 1024 bytes that LOCK.INFO shows
     * @param ?int $replicas how many replicas have to acknowledge the grant
     * @throws \InvalidArgumentException
     */
    public function lock(
        string|array $keys,
        float $lease = 30.0,
        float $wait = 10.0,
        bool $shared = false,
        ?int $limit = null,
        ?int $permits = null,
        bool $session = false,
        float $keep = 10.0,
        ?float $margin = null,
        float $atLeast = 0.0,
        ?string $data = null,
        ?int $replicas = null,
    ): Lock {
        return new Lock($this->commands, new Options(...get_defined_vars()));
    }

    /**
     * Returns a grant that another process acquired and detached, or null if it has ended.
     *
     * @param string|non-empty-list<string> $keys
     * @param mixed ...$options those of lock(), by name
     * @throws \InvalidArgumentException|Unavailable|ServerError|ModuleMissing
     */
    public function adopt(
        string|array $keys,
        #[\SensitiveParameter] string $token,
        int $fence,
        mixed ...$options,
    ): ?Grant {
        return $this->lock($keys, ...$options)->adopt($token, $fence);
    }

    /**
     * Returns $read(), or if that is null $compute(): one caller computes at a time.
     *
     * The others wait, and then read all at once. So $compute must store its result where $read finds
     * it.
     *
     * @template T
     * @param string|non-empty-list<string> $keys
     * @param callable(): ?T $read
     * @param callable(): T $compute
     * @param mixed ...$options those of lock(), by name, except shared, limit and permits
     * @return T
     * @throws NotAcquired|LockLost and what Lock::acquire() throws
     */
    public function once(string|array $keys, callable $read, callable $compute, mixed ...$options): mixed
    {
        [$lock, $readers] = [$this->lock($keys, ...$options), $this->lock($keys, ...$options, shared: true)];
        $work = fn () => $read() ?? $compute();
        $result = $read();
        if ($result !== null) {
            return $result;
        }
        $grant = $lock->tryAcquire();
        if ($grant !== null) {
            return $lock->during($grant, $work);
        }
        // If the one that computed failed, the others take turns.
        return $readers->using(fn () => $read()) ?? $lock->using($work);
    }

    /**
     * Releases every grant that this process holds of this factory's locks.
     *
     * @return int how many were still held
     * @throws LockException after all were released as far as possible
     */
    public function releaseAll(): int
    {
        $until = Clock::now() + $this->commands->timeout;
        [$count, $error] = [0, null];
        foreach ($this->commands->held as $grant) {
            try {
                $count += (int) $grant->get()?->releaseUntil($until);
            } catch (NotHeld) {
                // It is that of a process which forked this one.
            } catch (LockException $error) {
            }
        }
        return $error === null ? $count : throw $error;
    }
}
