<?php

// Servers for the tests, which end with them.

declare(strict_types=1);

const HOST = '127.0.0.1';

function free_port(): int
{
    $listener = stream_socket_server('tcp://' . HOST . ':0');
    $port = (int) substr(strrchr(stream_socket_get_name($listener, false), ':'), 1);
    fclose($listener);
    return $port;
}

/** Returns the port of the server that most tests use. */
function port(): int
{
    static $port = null;
    return $port ??= free_port();
}

function connection(?int $port = null): Redis
{
    $redis = new Redis();
    $redis->connect(HOST, $port ?? port(), 1.0);
    return $redis;
}

function signal_server(int $signal): void
{
    posix_kill($GLOBALS['servers'][0], $signal);
}

/** Starts a server without the module, and returns once it replies. */
function start_server(int $port, string ...$options): void
{
    global $servers;
    $program = getenv('REDIS_SERVER') ?: throw new Exception('REDIS_SERVER names the server');
    $nothing = ['file', '/dev/null', 'w'];
    $command = [$program, ...$options];
    $started = proc_open($command, [['file', '/dev/null', 'r'], $nothing, $nothing], $pipes, sys_get_temp_dir());
    $servers[] = proc_get_status($started)['pid'];
    $GLOBALS['started'][] = $started;
    $end = microtime(true) + 15;
    while (!answers($port)) {
        if (microtime(true) > $end) {
            throw new Exception("$program doesn't answer");
        }
        usleep(5000);
    }
}

function start_server_with_module(int $port, string ...$options): void
{
    $module = realpath(getenv('REDIS_LOCK_MODULE') ?: throw new Exception('REDIS_LOCK_MODULE names the module'));
    start_server($port, '--port', (string) $port, '--save', '', '--loadmodule', $module, ...$options);
}

function answers(int $port): bool
{
    try {
        return connection($port)->ping() === true;
    } catch (RedisException) {
        return false;
    }
}

$servers = [];
$test = getmypid();
register_shutdown_function(function () use ($test): void {
    foreach (getmypid() === $test ? $GLOBALS['servers'] : [] as $server) {
        posix_kill($server, SIGKILL);
    }
});
start_server_with_module(port());
