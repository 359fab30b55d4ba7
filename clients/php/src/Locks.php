<?php

declare(strict_types=1);

namespace RedisLock;

/** Factory of locks. Connects when the first command is sent. */
final class Locks
{
    private readonly Commands $commands;
    private readonly string $prefix;
    /** @var \WeakMap<Lock, int> the locks that are held, and the process that holds each */
    private readonly \WeakMap $held;

    /**
     * @param string|list<string>|\Redis|\RedisCluster|\Predis\ClientInterface $redis a URL
     *     redis://user:password@host:6379/0, rediss://... for TLS, unix:///path; several nodes of a
     *     cluster; or a client, whose address, login and prefix are read. Nothing is sent with it.
     * @param float $commandTimeout seconds after which a call that doesn't wait for a lock throws
     *     Unavailable, connecting included
     * @param list<string> $sentinels URLs; the host of $redis is then the name of the primary
     * @param array<string, mixed> $ssl options of PHP's ssl context, for TLS
     * @throws \InvalidArgumentException
     */
    public function __construct(
        #[\SensitiveParameter] string|array|\Redis|\RedisCluster|\Predis\ClientInterface $redis,
        float $commandTimeout = 1.0,
        Observer $observer = new Observer(),
        #[\SensitiveParameter] array $sentinels = [],
        array $ssl = [],
    ) {
        Options::duration('commandTimeout', $commandTimeout);
        [$servers, $this->prefix] = is_object($redis)
            ? Clients::read($redis, $ssl)
            : [self::servers((array) $redis, $sentinels, $ssl), ''];
        $this->commands = new Commands($servers, $commandTimeout, $observer);
        $this->held = new \WeakMap();
        $held = \WeakReference::create($this->held);
        // PHP runs no destructors after an exception that the program doesn't catch.
        register_shutdown_function(static function () use ($held): void {
            foreach ($held->get() ?? [] as $lock => $process) {
                $lock->releaseAtEnd();
            }
        });
    }

    /**
     * Returns one owner of a lock. Sends nothing.
     *
     * @param string|non-empty-list<string> $keys granted together or not at all; in a cluster, in
     *     one slot
     * @param float $lease seconds for which the lock is granted
     * @param float $wait seconds for which acquire() waits; INF: without a limit
     * @param ?string $token name of the owner, 1 to 256 bytes; 128 random bits by default
     * @param bool $shared true if other shared holders are admitted
     * @param ?int $limit most permits that all holders take together: a semaphore
     * @param ?int $permits permits that this holder takes; 1 by default
     * @param bool $session the server renews the lease until the connection closes, and then
     *     releases the lock
     * @param float $keep seconds for which the place in the queue outlives its connection
     * @param bool $reentrant true if the object may acquire the lock again while it holds it
     * @param bool $autoRelease true if the lock is released when the object or the program ends
     * @param float $atLeast seconds since the grant for which the lock stays after its release
     * @param ?string $data at most 1024 bytes that LOCK.INFO shows
     * @param ?int $replicas how many replicas have to acknowledge the grant
     * @throws \InvalidArgumentException
     */
    public function lock(
        string|array $keys,
        float $lease = 30.0,
        float $wait = 10.0,
        #[\SensitiveParameter] ?string $token = null,
        bool $shared = false,
        ?int $limit = null,
        ?int $permits = null,
        bool $session = false,
        float $keep = 10.0,
        bool $reentrant = false,
        bool $autoRelease = true,
        float $atLeast = 0.0,
        ?string $data = null,
        ?int $replicas = null,
    ): Lock {
        $prefixed = fn (mixed $key) => is_string($key) ? $this->prefix . $key : $key;
        $options = new Options(
            array_map($prefixed, array_values((array) $keys)),
            $lease,
            $wait,
            $shared,
            $limit,
            $permits,
            $session,
            $keep,
            $reentrant,
            $autoRelease,
            $atLeast,
            $data,
            $replicas,
        );
        if ($token !== null) {
            Options::token($token);
        }
        $commands = $session ? $this->commands->apart() : $this->commands;
        return new Lock($commands, $this->commands, $this->held, $options, $token);
    }

    /**
     * Asks the server who holds a key. Each holder can be released and extended here, whichever
     * process acquired it. It isn't released when its object ends.
     *
     * @return list<Lock>
     * @throws Unavailable|ServerError|ModuleMissing
     */
    public function holders(string $key): array
    {
        return $this->lock($key)->holders();
    }

    /**
     * Releases every lock that an object of this factory holds in this process.
     *
     * @return int how many were still held
     * @throws Unavailable|ServerError after all were released as far as possible
     */
    public function releaseAll(): int
    {
        $end = Clock::now() + $this->commands->timeout;
        $count = 0;
        $error = null;
        $locks = [];
        foreach ($this->held as $lock => $process) {
            if ($process === getmypid()) {
                $locks[] = $lock;
            }
        }
        foreach ($locks as $lock) {
            try {
                $count += (int) $lock->releaseWhole($end);
            } catch (LockException $error) {
            }
        }
        return $error === null ? $count : throw $error;
    }

    /**
     * @param list<string> $urls
     * @param list<string> $sentinels
     * @param array<string, mixed> $ssl
     */
    private static function servers(#[\SensitiveParameter] array $urls, array $sentinels, array $ssl): Servers
    {
        $servers = self::all($urls, $ssl);
        if ($servers === [] || ($sentinels !== [] && count($servers) > 1)) {
            throw new \InvalidArgumentException('redis must be one URL, or the URLs of the nodes of a cluster');
        }
        return $sentinels === []
            ? new Nodes($servers)
            : new Sentinel($servers[0], self::all($sentinels, $ssl));
    }

    /**
     * @param array<string> $urls
     * @param array<string, mixed> $ssl
     * @return list<Server>
     */
    private static function all(#[\SensitiveParameter] array $urls, array $ssl): array
    {
        $servers = [];
        // Without array_map, whose arguments stack traces show.
        foreach ($urls as $url) {
            $servers[] = Server::of($url, $ssl);
        }
        return $servers;
    }
}
