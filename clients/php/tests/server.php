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
    return $port ??= start_server_with_module();
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

/**
 * Starts a server, and starts it again if another process has taken the chosen port meanwhile.
 *
 * @param callable(int): list<string> $options for a port
 * @return int the port, once the server replies
 */
function start_server(callable $options): int
{
    global $servers;
    $program = getenv('REDIS_SERVER') ?: throw new Exception('REDIS_SERVER names the server');
    $nothing = ['file', '/dev/null', 'w'];
    for ($triesLeft = 5; $triesLeft > 0; $triesLeft--) {
        $port = free_port();
        $started = proc_open([$program, ...$options($port)], [['file', '/dev/null', 'r'], $nothing, $nothing], $pipes, sys_get_temp_dir());
        $process = proc_get_status($started)['pid'];
        $end = microtime(true) + 15;
        while (proc_get_status($started)['running'] && microtime(true) < $end) {
            if (answers($port, $process)) {
                $servers[] = $process;
                $GLOBALS['started'][] = $started;
                return $port;
            }
            usleep(5000);
        }
        proc_terminate($started, SIGKILL);
    }
    throw new Exception("$program could not be started");
}

function start_server_with_module(string ...$options): int
{
    $module = realpath(getenv('REDIS_LOCK_MODULE') ?: throw new Exception('REDIS_LOCK_MODULE names the module'));
    return start_server(fn (int $port) => ['--port', (string) $port, '--save', '', '--loadmodule', $module, ...$options]);
}

/** Returns true if the server at the port is this process. */
function answers(int $port, int $process): bool
{
    try {
        return (int) (connection($port)->info('server')['process_id'] ?? 0) === $process;
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
port();
