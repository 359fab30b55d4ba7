<?php

// Loads the classes of this folder and of the client without Composer.

declare(strict_types=1);

require_once __DIR__ . '/../autoload.php';

spl_autoload_register(static function (string $class): void {
    $prefix = 'RedisLock\\Laravel\\';
    if (str_starts_with($class, $prefix)) {
        require __DIR__ . '/src/' . substr($class, strlen($prefix)) . '.php';
    }
});
