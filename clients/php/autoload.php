<?php

// Loads the classes of this folder without Composer, like composer.json does.

declare(strict_types=1);

spl_autoload_register(static function (string $class): void {
    $prefix = 'RedisLock\\';
    if (str_starts_with($class, $prefix)) {
        $file = __DIR__ . '/src/' . substr($class, strlen($prefix)) . '.php';
        // The adapters' classes have the same prefix, and files of their own.
        if (is_file($file)) {
            require $file;
        }
    }
});
