<?php

// The driver of the conformance suite. Executes orders, each a line of JSON, with this library. A
// PHP process does one thing at a time, so each lock has its own process, whose wait a signal
// cancels.

declare(strict_types=1);

use RedisLock\Cancelled;
use RedisLock\Deadlock;
use RedisLock\Lock;
use RedisLock\Locks;

require __DIR__ . '/../autoload.php';

/** Writes one answer. The line has the id of its order, and is a single write. */
function say(int $id, array $answer): void
{
    fwrite(STDOUT, json_encode(['id' => $id, ...$answer]) . "\n");
}

function connect(array $order): Closure
{
    if ($order['cluster']) {
        return fn () => new RedisCluster(null, $order['servers'], 1.0, 5.0);
    }
    [$host, $port] = explode(':', $order['servers'][0]);
    return function () use ($host, $port) {
        $redis = new Redis();
        $redis->connect($host, (int) $port, 1.0);
        return $redis;
    };
}

function lockOf(array $order, Closure $connect): Lock
{
    return (new Locks($connect))->lock(
        $order['keys'],
        lease: $order['lease_ms'] / 1000,
        token: $order['token'],
        shared: $order['shared'],
        limit: $order['limit'],
        permits: $order['permits'],
        session: $order['session'],
        keep: $order['keep_ms'] / 1000,
    );
}

function acquire(Lock $lock, ?int $waitMs): array
{
    global $waits;
    try {
        $waits = true;
        $fence = $lock->acquire($waitMs === null ? null : $waitMs / 1000);
        $waits = false;
        return $fence === null ? ['ok' => false] : ['ok' => true, 'fence' => $fence];
    } finally {
        $waits = false;
    }
}

function obey(Lock $lock, array $order): array
{
    return match ($order['do']) {
        'lock' => ['ok' => true, 'token' => $lock->token],
        'acquire' => acquire($lock, $order['wait_ms']),
        'release' => ['ok' => $lock->release()],
        'extend' => ['ok' => $lock->extend($order['lease_ms'] / 1000)],
        'left' => ['ok' => true, 'ms' => (int) ($lock->left() * 1000)],
        'state' => ['ok' => true, 'lost' => $lock->isLost(), 'fence' => $lock->fence(), 'token' => $lock->token],
    };
}

/** Serves one lock until its orders end. */
function serve($orders, array $first, Closure $connect): void
{
    pcntl_async_signals(true);
    pcntl_signal(SIGUSR1, function (): void {
        global $waits;
        if ($waits) {
            throw new Cancelled('by a signal');
        }
    });
    $lock = lockOf($first, $connect);
    for ($order = $first; $order !== null; $order = json_decode((string) fgets($orders), true)) {
        try {
            $answer = obey($lock, $order);
        } catch (Throwable $thrown) {
            $name = match ($thrown::class) {
                Cancelled::class => 'cancelled',
                Deadlock::class => 'deadlock',
                default => 'other',
            };
            $answer = ['error' => $name, 'text' => (string) $thrown];
        }
        say($order['id'], $answer);
    }
}

/** @return array{int, resource} the process, and the stream for its orders */
function start(array $first, Closure $connect): array
{
    [$theirs, $ours] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
    $pid = pcntl_fork();
    if ($pid === 0) {
        fclose($ours);
        serve($theirs, $first, $connect);
        exit(0);
    }
    fclose($theirs);
    return [$pid, $ours];
}

$waits = false;
$connect = null;
$processes = [];
$lockOfOrder = [];
while (($line = fgets(STDIN)) !== false) {
    $order = json_decode($line, true);
    $id = $order['id'];
    switch ($order['do']) {
        case 'connect':
            $connect = connect($order);
            say($id, ['ok' => true]);
            break;
        case 'lock':
            $processes[$order['lock']] = start($order, $connect);
            break;
        case 'cancel':
            posix_kill($processes[$lockOfOrder[$order['of']]][0], SIGUSR1);
            say($id, ['ok' => true]);
            break;
        default:
            $lockOfOrder[$id] = $order['lock'];
            fwrite($processes[$order['lock']][1], $line);
    }
}
// The held locks are not released.
foreach ($processes as [$pid]) {
    posix_kill($pid, SIGKILL);
}
