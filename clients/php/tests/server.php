<?php

// Servers for the tests, which end with them. REDIS_LOCK_RIG names the program that starts them.

declare(strict_types=1);

const HOST = '127.0.0.1';

/**
 * Sends an order of tests/rig/src/main.rs.
 *
 * @return list<string> the words of its reply
 */
function order(string|int ...$words): array
{
    fwrite($GLOBALS['orders'][0], implode(' ', $words) . "\n");
    $reply = explode(' ', trim(fgets($GLOBALS['orders'][1]) ?: 'nothing'));
    return array_shift($reply) === 'ok' ? $reply : throw new Exception(implode(' ', $words) . ' failed');
}

function free_port(): int
{
    return (int) order('port')[0];
}

/** Returns the port of the server that most tests use. */
function port(): int
{
    static $port = null;
    return $port ??= (int) order('start')[0];
}

function connection(?int $port = null): Redis
{
    $redis = new Redis();
    $redis->connect(HOST, $port ?? port(), 1.0);
    return $redis;
}

/** Forked processes call this too, so it sends no order. */
function signal_server(int $signal): void
{
    posix_kill($GLOBALS['server'], $signal);
}

$program = getenv('REDIS_LOCK_RIG') ?: throw new Exception('REDIS_LOCK_RIG names the program that starts servers');
$rig = proc_open([$program, 'serve'], [['pipe', 'r'], ['pipe', 'w']], $orders);
$test = getmypid();
register_shutdown_function(function () use ($rig, $orders, $test): void {
    if (getmypid() === $test) {
        fwrite($orders[0], "quit\n");
        proc_close($rig) === 0 || exit(1);
    }
});
$server = (int) connection()->info('server')['process_id'];
