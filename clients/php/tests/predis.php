<?php

// Loads Predis: that of Debian's package, or of the folder in PREDIS.

declare(strict_types=1);

(function (): void {
    require (getenv('PREDIS') ?: '/usr/share/php/Predis') . '/Autoloader.php';
    Predis\Autoloader::register();
})();
