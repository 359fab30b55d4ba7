<?php

// The driver of the conformance suite. Executes orders, each a line of JSON, with this library. A
// PHP process does one thing at a time, so each lock has its own process, whose wait a signal
// cancels. The argument says which client the library works with: `php` is phpredis, or `predis`.

declare(strict_types=1);

use RedisLock\{
    Cancelled, Deadlock, Grant, Lock, LockException, LockLost, Locks, ModuleMissing, NotAcquired,
    NotHeld, NotReplicated, Observer, Unavailable,
};

require __DIR__ . '/../autoload.php';
require __DIR__ . '/predis.php';

/** Writes a line in a single write. */
function say(array $line): void
{
    fwrite(STDOUT, json_encode($line, JSON_INVALID_UTF8_SUBSTITUTE) . "\n");
}

/** Writes the events of a process, which has one lock. */
final class Events extends Observer
{
    public static string $lock;

    public function waited(Lock $lock, float $seconds, string $outcome): void
    {
        say(['event' => 'waited', 'lock' => self::$lock, 'ms' => (int) (1000 * $seconds), 'outcome' => $outcome]);
    }

    public function granted(Grant $grant): void
    {
        say(['event' => 'granted', 'lock' => self::$lock]);
    }

    public function lost(Grant $grant): void
    {
        say(['event' => 'lost', 'lock' => self::$lock]);
    }

    public function unavailable(LockException $error): void
    {
        say(['event' => 'unavailable', 'text' => (string) $error]);
    }
}

/** Returns the given fields of an order as named arguments of the library. */
function arguments(array $order, string ...$fields): array
{
    $arguments = [];
    foreach (array_filter($order, is_scalar(...)) as $field => $value) {
        $isTime = str_ends_with($field, '_ms');
        $name = lcfirst(str_replace('_', '', ucwords($isTime ? substr($field, 0, -3) : $field, '_')));
        if (in_array($field, $fields, true)) {
            $arguments[$name] = $isTime ? seconds($value) : $value;
        }
    }
    return $arguments;
}

/** @param int|float|string $ms a number, or nan, inf or -inf */
function seconds(int|float|string $ms): float
{
    return is_string($ms) ? ['nan' => NAN, 'inf' => INF, '-inf' => -INF][$ms] : $ms / 1000;
}

/** Returns locks over a client. If no server is there now, over a function that makes the client. */
function locksOf(array $order, string $client): Locks
{
    $options = ['observer' => new Events()] + arguments($order, 'command_timeout_ms');
    $make = fn (float $seconds) => $client === 'predis' ? predisOf($order, $seconds) : phpRedisOf($order, $seconds);
    try {
        // Only a function finds the primary again, and the slots that no node served at first.
        $isGiven = !isset($order['sentinel']) && !($order['cluster'] && $client === 'php');
        $redis = !$isGiven ? $make : $make(min(max($options['commandTimeout'] ?? 1.0, 0.1), 1.0));
        if ($redis instanceof Predis\Client && !$order['cluster']) {
            $redis->connect();
        }
    } catch (RedisException | RedisClusterException | Predis\PredisException) {
        $redis = $make;
    }
    return new Locks($redis, ...$options);
}

/** A cluster's times are set once: a third of the limit, so that there is time for another attempt. */
function phpRedisOf(array $order, float $seconds): Redis|RedisCluster
{
    $login = [$order['username'] ?? null, $order['password'] ?? null];
    if ($order['cluster']) {
        $login = $login[1] === null ? null : ['user' => $login[0], 'pass' => $login[1]];
        $third = min(1.0, seconds($order['command_timeout_ms'] ?? 1000) / 3);
        try {
            return new RedisCluster(null, $order['servers'], $third, $third, false, $login);
        } catch (RedisClusterException $thrown) {
            // It doesn't say that the password is wrong.
            phpRedisOf(['cluster' => false] + $order, $seconds);
            throw $thrown;
        }
    }
    [$host, $port] = isset($order['sentinel']) ? primaryOf($order, $seconds) : explode(':', $order['servers'][0]);
    $redis = new Redis();
    $redis->connect($host, (int) $port, $seconds, null, 0, $seconds);
    if ($login[1] !== null) {
        $redis->auth($login);
    }
    return $redis;
}

/** @return array{string, string} */
function primaryOf(array $order, float $seconds): array
{
    foreach ($order['servers'] as $address) {
        [$host, $port] = explode(':', $address);
        $sentinel = new RedisSentinel($host, (int) $port, $seconds, null, 0, $seconds);
        $primary = $sentinel->getMasterAddrByName($order['sentinel']);
        if ($primary) {
            return $primary;
        }
    }
    throw new RedisException('no sentinel knows the primary');
}

function predisOf(array $order, float $seconds): Predis\Client
{
    $common = ['timeout' => $seconds] + array_intersect_key($order, ['username' => 0, 'password' => 0]);
    if (isset($order['sentinel'])) {
        $options = ['replication' => 'sentinel', 'service' => $order['sentinel'], 'parameters' => $common];
        return new Predis\Client(array_map(fn ($address) => "tcp://$address", $order['servers']), $options);
    }
    $nodes = array_map(function (string $address) use ($common) {
        [$host, $port] = explode(':', $address);
        return ['host' => $host, 'port' => (int) $port] + $common;
    }, $order['servers']);
    $options = ['cluster' => 'redis', 'parameters' => $common];
    return $order['cluster'] ? new Predis\Client($nodes, $options) : new Predis\Client($nodes[0]);
}

function lockOf(array $order, Locks $locks): Lock
{
    $times = ['lease_ms', 'wait_ms', 'keep_ms', 'margin_ms', 'at_least_ms'];
    $others = ['shared', 'limit', 'permits', 'session', 'data', 'replicas'];
    return $locks->lock($order['keys'], ...arguments($order, ...$times, ...$others));
}

/** Returns the wait of an order, where null means without a limit. */
function waitOf(array $order): ?float
{
    return array_key_exists('wait_ms', $order) ? seconds($order['wait_ms'] ?? 'inf') : null;
}

/** Runs what a signal may cancel. */
function cancellable(callable $work): mixed
{
    global $waits;
    try {
        $waits = true;
        return $work();
    } finally {
        $waits = false;
    }
}

function acquire(Lock $lock, array $order, ?Grant &$held): array
{
    $grant = cancellable(fn () => $lock->acquire(waitOf($order)));
    if ($grant === null) {
        return ['ok' => false];
    }
    $held = $grant;
    return ['ok' => true, 'fence' => $grant->fence, 'token' => $grant->token()];
}

function block(Lock $lock, array $order): array
{
    $fence = cancellable(fn () => $lock->using(function (Grant $grant) use ($order): int {
        global $waits;
        $waits = false;
        say(['event' => 'in', 'lock' => $order['lock']]);
        usleep(1000 * $order['work_ms']);
        return isset($order['fail']) ? throw new DomainException($order['fail']) : $grant->fence;
    }, waitOf($order)));
    return ['ok' => true, 'fence' => $fence];
}

/** Returns every text form of a value. */
function texts(mixed $value): string
{
    ob_start();
    var_dump($value);
    $texts = ob_get_clean() . print_r($value, true) . json_encode($value) . print_r((array) $value, true);
    return $texts . @var_export($value, true) . print_r(answer(fn () => [serialize($value)]), true);
}

function obey(Lock $lock, Locks $locks, ?Grant &$grant, array $order): array
{
    return match ($order['do']) {
        'lock' => ['ok' => true],
        'acquire' => acquire($lock, $order, $grant),
        'block' => block($lock, $order),
        'release' => ['ok' => $grant === null ? throw new NotHeld('never acquired') : $grant->release()],
        'release_all' => ['ok' => true, 'count' => $locks->releaseAll()],
        'extend' => ['ok' => $grant->extend(seconds($order['lease_ms']))],
        'left' => ['ok' => true, 'ms' => (int) (1000 * ($grant?->left() ?? 0.0))],
        'owned' => ['ok' => $grant !== null && $grant->owned()],
        'state' => ['ok' => true, 'lost' => $grant !== null && $grant->isLost(), 'fence' => $grant?->fence, 'token' => $grant?->token()],
        'texts' => ['ok' => true, 'text' => texts($lock) . texts($locks) . texts($grant)],
    };
}

/** The names of errors by their classes. */
const ERRORS = [
    InvalidArgumentException::class => 'argument',
    TypeError::class => 'argument',
    NotAcquired::class => 'not_acquired',
    LockLost::class => 'lost',
    Cancelled::class => 'cancelled',
    Deadlock::class => 'deadlock',
    Unavailable::class => 'unavailable',
    ModuleMissing::class => 'module_missing',
    NotReplicated::class => 'not_replicated',
    NotHeld::class => 'misuse',
    DomainException::class => 'failed',
    Throwable::class => 'other',
];

function answer(callable $work): array
{
    try {
        return $work();
    } catch (Throwable $thrown) {
        $isDenial = preg_match('/^(NOPERM|NOAUTH|WRONGPASS) /', $thrown->getMessage());
        $names = array_filter(ERRORS, fn ($class) => $thrown instanceof $class, ARRAY_FILTER_USE_KEY);
        $text = $thrown . print_r($thrown->getTrace(), true);
        return ['error' => $isDenial ? 'denied' : reset($names), 'text' => $text];
    }
}

/** Serves one lock until its orders end. */
function serve($orders, array $first, array $connect, string $client): void
{
    Events::$lock = $first['lock'];
    pcntl_async_signals(true);
    pcntl_signal(SIGUSR1, function (): void {
        global $waits;
        if ($waits) {
            throw new Cancelled('by a signal');
        }
    });
    if (isset($first['max_hold_ms'])) {
        // Nothing is renewed, so there is no such option.
        say(['id' => $first['id'], 'error' => 'unrepresentable']);
        posix_kill(posix_getpid(), SIGKILL);
    }
    $locks = $lock = $grant = null;
    for ($order = $first; $order !== null; $order = json_decode((string) fgets($orders), true)) {
        $answer = answer(function () use (&$locks, &$lock, &$grant, $order, $connect, $client): array {
            $locks ??= locksOf($connect, $client);
            $lock ??= lockOf($order, $locks);
            return obey($lock, $locks, $grant, $order);
        });
        if ($order['do'] !== 'release_all') {
            say(['id' => $order['id'], ...$answer]);
        } else {
            fwrite($orders, json_encode($answer) . "\n");
        }
        if ($lock === null) {
            break;
        }
    }
    // Without the destructors, because the held lock is not released.
    posix_kill(posix_getpid(), SIGKILL);
}

/**
 * @param array $others the processes of other locks, whose streams end only if this process has none of them
 * @return array{int, resource} the process, and the stream for its orders
 */
function start(array $first, array $connect, string $client, array $others): array
{
    [$theirs, $ours] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
    $pid = pcntl_fork();
    if ($pid === 0) {
        array_walk($others, fn (array $other) => fclose($other[1]));
        fclose($ours);
        serve($theirs, $first, $connect, $client);
    }
    fclose($theirs);
    return [$pid, $ours];
}

/** In hours of chaos thousands of locks come. PHP waits for no descriptor above 1023. */
const MOST_PROCESSES = 100;

// The system forgets a lock's process that has ended.
pcntl_signal(SIGCHLD, SIG_IGN);
$waits = false;
$client = $argv[1] ?? 'php';
$connect = null;
$processes = [];
$lockOfOrder = [];
while (($line = fgets(STDIN)) !== false) {
    $order = json_decode($line, true);
    $id = $order['id'];
    switch ($order['do']) {
        case 'connect':
            $connect = $order;
            say(['id' => $id, ...answer(fn () => ['ok' => locksOf($order, $client) !== null])]);
            break;
        case 'lock':
            $processes[$order['lock']] = start($order, $connect, $client, $processes);
            if (count($processes) > MOST_PROCESSES) {
                // Its orders end, so it ends after the one that it executes.
                array_shift($processes);
            }
            break;
        case 'cancel':
            posix_kill($processes[$lockOfOrder[$order['of']]][0], SIGUSR1);
            say(['id' => $id, 'ok' => true]);
            break;
        case 'release_all':
            $answer = ['ok' => true, 'count' => 0];
            foreach ($processes as [, $stream]) {
                fwrite($stream, $line);
            }
            foreach ($processes as [, $stream]) {
                $part = json_decode((string) fgets($stream), true) ?? ['count' => 0];
                $answer = isset($part['error']) ? $part : [...$answer, 'count' => $answer['count'] + $part['count']];
            }
            say(['id' => $id, ...$answer]);
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
