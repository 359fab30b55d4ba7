<?php

declare(strict_types=1);

namespace RedisLock\Laravel;

use Illuminate\Cache\RedisStore;
use RedisLock\Locks;

/** Laravel's Redis store of the cache, with locks of the redis-lock module. */
class LockStore extends RedisStore
{
    /** @var array<string, Locks> by the name of Laravel's connection */
    private array $locks = [];
    /** @var array<string, mixed> named arguments of Locks */
    private array $arguments = [];

    /**
     * Makes the store that a configuration describes, like Laravel makes its Redis store.
     *
     * @param \ArrayAccess<string, mixed> $app
     * @param array<string, mixed> $config an entry of `cache.stores`
     */
    public static function ofConfiguration($app, array $config): self
    {
        $settings = $app['config'];
        $connection = $config['connection'] ?? 'default';
        $prefix = $config['prefix'] ?? $settings['cache.prefix'];
        // Laravel takes the last argument since version 13.
        $store = new self($app['redis'], $prefix, $connection, $settings['cache.serializable_classes'] ?? null);
        $store->setLockConnection($config['lock_connection'] ?? $connection);
        return $store->setLockArguments($config['locks'] ?? []);
    }

    /**
     * Sets named arguments of `new Locks()`. The client is that of the lock connection, unless they
     * have another.
     *
     * @param array<string, mixed> $arguments
     * @return $this
     */
    public function setLockArguments(#[\SensitiveParameter] array $arguments): static
    {
        $this->arguments = $arguments;
        $this->locks = [];
        return $this;
    }

    public function lock($name, $seconds = 0, $owner = null)
    {
        $connection = $this->lockConnection ?? $this->connection;
        return new Lock($this->locks($connection), $this->prefix . $name, $seconds, $owner, $connection);
    }

    private function locks(string $connection): Locks
    {
        return $this->locks[$connection] ??= new Locks(...[
            ...$this->arguments,
            'redis' => $this->arguments['redis'] ?? $this->lockConnection()->client(),
        ]);
    }
}
