<?php

// Tests of speed. The best of some rounds counts.

declare(strict_types=1);

use RedisLock\Locks;

require __DIR__ . '/../autoload.php';
require __DIR__ . '/predis.php';
require __DIR__ . '/server.php';
require __DIR__ . '/checks.php';

const PAIRS = 1000;

/** Returns the processor time of some pairs in seconds. */
function cpu_of(callable $pair): float
{
    $now = function (): float {
        $used = getrusage();
        return $used['ru_utime.tv_sec'] + $used['ru_stime.tv_sec'] + ($used['ru_utime.tv_usec'] + $used['ru_stime.tv_usec']) / 1e6;
    };
    $began = $now();
    for ($count = 0; $count < PAIRS; $count++) {
        $pair();
    }
    return $now() - $began;
}

function test_a_pair_takes_at_most_twice_the_cpu_of_raw_commands(): void
{
    foreach (clients() as $name => $client) {
        $lock = (new Locks($client))->lock('k');
        $raw = function () use ($client): void {
            raw($client, 'LOCK.ACQUIRE', 'raw', 't', 'PX', '30000');
            raw($client, 'LOCK.RELEASE', 'raw', 't');
        };
        $ours = fn () => $lock->acquire()->release();
        $ratios = array_map(fn () => cpu_of($ours) / cpu_of($raw), range(1, 5));
        same(true, min($ratios) < 2, "$name: " . json_encode($ratios));
    }
}

run_tests($argv[1] ?? '');
