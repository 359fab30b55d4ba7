<?php

declare(strict_types=1);

namespace RedisLock\Laravel;

use Illuminate\Support\ServiceProvider;

/** Registers the cache driver `redis-lock`. */
final class LockServiceProvider extends ServiceProvider
{
    public function register(): void
    {
        $this->callAfterResolving('cache', function ($cache): void {
            // Laravel binds the function to its cache manager.
            $cache->extend('redis-lock', function ($app, array $config) {
                return $app['cache']->repository(LockStore::ofConfiguration($app, $config), $config);
            });
        });
    }
}
