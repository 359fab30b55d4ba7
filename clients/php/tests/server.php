<?php

// A server for the tests, which ends with them.

declare(strict_types=1);

const HOST = '127.0.0.1';

function port(): int
{
    static $port = null;
    if ($port === null) {
        $listener = stream_socket_server('tcp://' . HOST . ':0');
        $port = (int) substr(strrchr(stream_socket_get_name($listener, false), ':'), 1);
        fclose($listener);
    }
    return $port;
}

function connection(): Redis
{
    $redis = new Redis();
    $redis->connect(HOST, port(), 1.0);
    return $redis;
}

function signal_server(int $signal): void
{
    posix_kill(proc_get_status($GLOBALS['server'])['pid'], $signal);
}

function serve(): void
{
    global $server;
    $module = realpath(getenv('REDIS_LOCK_MODULE') ?: throw new Exception('REDIS_LOCK_MODULE names the module'));
    $program = getenv('REDIS_SERVER') ?: throw new Exception('REDIS_SERVER names the server');
    $nothing = ['file', '/dev/null', 'w'];
    $command = [$program, '--port', (string) port(), '--save', '', '--loadmodule', $module];
    $server = proc_open($command, [['file', '/dev/null', 'r'], $nothing, $nothing], $pipes, sys_get_temp_dir());
    register_shutdown_function(fn () => proc_terminate($server, SIGKILL));
    $end = microtime(true) + 15;
    while (!answers()) {
        if (microtime(true) > $end) {
            throw new Exception("$program doesn't answer");
        }
        usleep(5000);
    }
}

function answers(): bool
{
    try {
        return connection()->ping() === true;
    } catch (RedisException) {
        return false;
    }
}

serve();
