<?php

// The package's own tests: every function whose name begins with `test_`, against one server.

declare(strict_types=1);

use RedisLock\LockLost;
use RedisLock\Locks;
use RedisLock\NotAcquired;

require __DIR__ . '/../autoload.php';
require __DIR__ . '/server.php';

function same(mixed $expected, mixed $found, string $what): void
{
    if ($expected !== $found) {
        throw new Exception("$what: " . var_export($found, true) . ' instead of ' . var_export($expected, true));
    }
}

function until(string $what, callable $isSo): void
{
    $end = microtime(true) + 15;
    while (!$isSo()) {
        if (microtime(true) > $end) {
            throw new Exception("not within 15 s: $what");
        }
        usleep(5000);
    }
}

/** Returns the result of the work, and the seconds that it took. */
function timed(callable $work): array
{
    $began = hrtime(true);
    return [$work(), (hrtime(true) - $began) / 1e9];
}

function thrown(callable $work): Throwable
{
    try {
        $work();
    } catch (Throwable $thrown) {
        return $thrown;
    }
    throw new Exception('nothing was thrown');
}

function locks(): Locks
{
    return new Locks(connection(...));
}

function call(string|int ...$words): mixed
{
    $reply = connection()->rawCommand(...$words);
    return $reply === [] ? null : $reply;
}

function waiters(string $key): int
{
    $info = call('LOCK.INFO', $key) ?? ['waiters', 0];
    return $info[array_search('waiters', $info, true) + 1];
}

function test_using_holds_the_lock_and_releases_it(): void
{
    $lock = locks()->lock('k');
    $found = $lock->using(fn (int $fence) => [$fence, call('LOCK.CHECK', 'k', $lock->token) > 0]);
    same([$lock->fence(), true], $found, 'in the function');
    same(null, call('LOCK.INFO', 'k'), 'after it');
    $failure = new Exception('of the work');
    same($failure, thrown(fn () => $lock->using(fn () => throw $failure)), 'what it threw');
    same(null, call('LOCK.INFO', 'k'), 'after it threw');
}

function test_using_tells_of_a_loss(): void
{
    $lock = locks()->lock('k');
    $thrown = thrown(fn () => $lock->using(fn () => call('DEL', 'k')));
    same(LockLost::class, $thrown::class, 'thrown');
    same(true, $lock->isLost(), 'lost');
}

function test_using_waits_no_longer_than_it_is_told(): void
{
    call('LOCK.ACQUIRE', 'k', 'other', 'PX', 60000);
    $lock = locks()->lock('k');
    same(NotAcquired::class, thrown(fn () => $lock->using(fn () => null, wait: 0.1))::class, 'thrown');
    same(0, waiters('k'), 'waiters');
}

function test_a_lease_that_is_over_is_known_without_asking(): void
{
    $lock = locks()->lock('k', lease: 2.0);
    $lock->acquire();
    same(false, $lock->isLost(), 'lost at first');
    until('the lease is over', fn () => $lock->isLost());
    until('the server knows of it', fn () => call('LOCK.ACQUIRE', 'k', 'other', 'PX', 60000) !== null);
    same([false, false], [$lock->extend(10.0), $lock->release()], 'extended, released');
    same(true, call('LOCK.CHECK', 'k', 'other') > 0, 'the next holder has it');
}

/** Waits longer than a wait stays on one connection. */
function test_a_long_wait_keeps_its_database_prefix_and_place(): void
{
    $connect = function () {
        $redis = connection();
        $redis->select(3);
        $redis->setOption(Redis::OPT_PREFIX, 'p:');
        $redis->setOption(Redis::OPT_SERIALIZER, Redis::SERIALIZER_PHP);
        return $redis;
    };
    $other = $connect();
    $other->rawCommand('LOCK.ACQUIRE', 'p:k', 'other', 'PX', 5000);
    $lock = (new Locks($connect))->lock('k');
    [$fence, $took] = timed(fn () => $lock->acquire(wait: 30.0));
    same(true, $fence !== null && $took > 2.5 && $took < 10.0, "it was granted after $took s");
    same(true, $other->rawCommand('LOCK.CHECK', 'p:k', $lock->token) > 0, 'it is held there');
    same(true, $lock->release(), 'released');
}

/** Checks that the reply to an abandoned wait doesn't become the reply to another command. */
function test_a_persistent_connection_is_left_in_step(): void
{
    // Without this, phpredis checks each connection that it reuses.
    ini_set('redis.pconnect.echo_check_liveness', '0');
    call('LOCK.ACQUIRE', 'k', 'other', 'PX', 60000);
    $connect = function () {
        $redis = new Redis();
        $redis->pconnect(HOST, port());
        return $redis;
    };
    same(null, (new Locks($connect))->lock('k')->acquire(wait: 2.5), 'the fence');
    same('mine', $connect()->rawCommand('ECHO', 'mine'), 'the answer to ECHO');
}

function test_a_wait_doesnt_end_a_session(): void
{
    $locks = locks();
    $session = $locks->lock('held', session: true);
    $session->acquire();
    call('LOCK.ACQUIRE', 'k', 'other', 'PX', 60000);
    same(null, $locks->lock('k')->acquire(wait: 2.5), 'the fence');
    same(null, $locks->lock('k', session: true)->acquire(wait: 2.5), "a session's fence");
    same(true, $session->left() > 0, 'the session has it');
    same(true, $session->release(), 'released');
}

function test_a_session_that_is_waited_for_is_tied(): void
{
    call('LOCK.ACQUIRE', 'k', 'other', 'PX', 1500);
    $lock = locks()->lock('k', lease: 60.0, session: true);
    $lock->acquire();
    $tie = function (): int {
        $holder = call('LOCK.INFO', 'k')[3][0];
        return $holder[array_search('session', $holder, true) + 1];
    };
    same(1, $tie(), 'the tie');
    call('LOCK.EXTEND', 'k', $lock->token, 'NOSESSION');
    same([0, true, 1], [$tie(), $lock->extend(60.0), $tie()], 'the tie, extended, the tie');
    unset($lock);
    until('it is free', fn () => call('LOCK.INFO', 'k') === null);
}

function test_a_refused_command_doesnt_end_a_session(): void
{
    $lock = locks()->lock('k', session: true);
    $lock->acquire();
    $thrown = thrown(fn () => $lock->extend(1e15));
    same('ERR invalid lease', substr($thrown->getMessage(), 0, 17), 'thrown');
    same(true, $lock->left() > 0 && $lock->release(), 'it is held');
}

function test_a_lost_connection_loses_nothing_but_a_session(): void
{
    [$lock, $session] = [locks()->lock('k'), locks()->lock('s', session: true)];
    $lock->acquire();
    $session->acquire();
    $kill = fn () => call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    $kill();
    same(true, $lock->extend(20.0), 'extended');
    $kill();
    same(true, $lock->left() > 10, 'left');
    $kill();
    same(true, $lock->release(), 'released');
    same([false, true], [$session->extend(20.0), $session->isLost()], 'the session is extended, lost');
}

/** Pauses the server for longer than the reply's time limit, so that the command is sent twice. */
function test_a_release_is_sent_again(): void
{
    $lock = locks()->lock('k');
    $lock->acquire();
    call('CLIENT', 'PAUSE', 3000, 'ALL');
    [$released, $took] = timed(fn () => $lock->release());
    same(true, $released && $took > 1.0, "released after $took s");
    same(null, call('LOCK.INFO', 'k'), 'after it');
}

function test_a_release_whose_answer_is_lost_was_a_release(): void
{
    $connect = function () {
        $redis = new class () extends Redis {
            public static int $releases = 0;

            public function rawCommand($command, ...$words): mixed
            {
                $reply = parent::rawCommand($command, ...$words);
                if ($command === 'LOCK.RELEASE' && self::$releases++ === 0) {
                    throw new RedisException('read error on connection');
                }
                return $reply;
            }
        };
        $redis->connect(HOST, port());
        return $redis;
    };
    $lock = (new Locks($connect))->lock('k');
    $lock->acquire();
    same([true, false], [$lock->release(), $lock->isLost()], 'released, lost');
}

function test_a_signal_handler_gives_a_wait_up(): void
{
    call('LOCK.ACQUIRE', 'k', 'other', 'PX', 60000);
    $stop = new Exception('stop');
    pcntl_async_signals(true);
    pcntl_signal(SIGALRM, fn () => throw $stop);
    $lock = locks()->lock('k');
    signal_once_it_waits();
    [$thrown, $took] = timed(fn () => thrown(fn () => $lock->acquire()));
    pcntl_async_signals(false);
    same($stop, $thrown, 'thrown');
    same(true, $took < 6.0, "after $took s");
    same(0, waiters('k'), 'waiters');
}

/** Sends this process a signal from a child once it waits. The child leaves the server running. */
function signal_once_it_waits(): void
{
    $waits = posix_getpid();
    if (pcntl_fork() === 0) {
        try {
            until('it waits', fn () => waiters('k') === 1);
            posix_kill($waits, SIGALRM);
        } finally {
            posix_kill(posix_getpid(), SIGKILL);
        }
    }
}

/** Accepts both outcomes, the grant or the signal first. */
function test_a_signal_leaves_no_grant(): void
{
    pcntl_async_signals(true);
    pcntl_signal(SIGALRM, fn () => throw new DomainException('stop'));
    for ($round = 0; $round < 20; $round++) {
        call('LOCK.ACQUIRE', 'k', 'other', 'PX', 1000 - 2 * $round);
        $lock = locks()->lock('k');
        pcntl_alarm(1);
        try {
            $lock->acquire();
            pcntl_alarm(0);
            same(true, $lock->release(), "released in round $round");
        } catch (DomainException $stop) {
            $calls = array_column($stop->getTrace(), 'function');
            if ($lock->fence() !== null && !in_array('acquire', $calls, true)) {
                // The signal came after the call, before the alarm was cancelled.
                same(true, $lock->release(), "released in round $round");
            }
        }
        until('the other grant is over', fn () => call('LOCK.CHECK', 'k', 'other') === 0);
        same(null, call('LOCK.INFO', 'k'), "after round $round");
    }
    pcntl_async_signals(false);
}

function test_a_try_at_a_server_that_is_gone_fails_after_a_second(): void
{
    $gone = new Locks(function () {
        $redis = new Redis();
        $redis->connect(HOST, 1, 0.5);
        return $redis;
    });
    [$thrown, $took] = timed(fn () => thrown(fn () => $gone->lock('k')->acquire(wait: 0)));
    same(RedisException::class, $thrown::class, 'thrown');
    same(true, $took >= 1.0 && $took < 5.0, "after $took s");
}

function test_a_wrong_password_isnt_tried_for_ever(): void
{
    $wrong = new Locks(function () {
        $redis = connection();
        $redis->auth(['nobody', 'wrong']);
        return $redis;
    });
    same(RedisException::class, thrown(fn () => $wrong->lock('k')->acquire())::class, 'thrown');
}

function test_the_version_is_that_of_the_module(): void
{
    $composer = json_decode(file_get_contents(__DIR__ . '/../composer.json'), true);
    preg_match('/^lock_version:(\S+)/m', connection()->rawCommand('INFO', 'lock'), $module);
    same($module[1], $composer['version'], 'the version');
}

/** @return list<string> the programs of the README, in their order */
function programs(): array
{
    preg_match_all('/^```php\n(.*?)^```/ms', file_get_contents(__DIR__ . '/../README.md'), $found);
    $autoload = var_export(realpath(__DIR__ . '/../autoload.php'), true);
    $here = ["__DIR__ . '/../redis-lock/clients/php/autoload.php'" => $autoload, '6379' => (string) port()];
    return array_map(fn (string $program) => strtr($program, $here), $found[1]);
}

/** @return resource the program's output */
function started(string $program)
{
    $input = ['file', '/dev/null', 'r'];
    $command = [PHP_BINARY, '-r', substr($program, strlen('<?php'))];
    // Keeps a reference, because PHP would otherwise wait here for the program's end.
    $GLOBALS['started'][] = proc_open($command, [$input, ['pipe', 'w'], ['redirect', 1]], $pipes);
    return $pipes[1];
}

function test_a_first_lock_of_the_readme_is_waited_for(): void
{
    $program = programs()[0];
    // Held until both programs wait, however long the second program takes to start.
    call('LOCK.ACQUIRE', 'orders:42', 'other', 'PX', 600000);
    $first = started($program);
    until('the first one waits', fn () => waiters('orders:42') === 1);
    $second = started($program);
    until('the second one waits', fn () => waiters('orders:42') === 2);
    call('LOCK.RELEASE', 'orders:42', 'other');
    $fences = [];
    foreach ([$first, $second] as $output) {
        $said = stream_get_contents($output);
        same(1, preg_match('/^got it, fence (\d+)\nreleased: true\n$/', $said, $found), "what it said, $said");
        $fences[] = (int) $found[1];
    }
    same(true, $fences[0] < $fences[1], 'they rise');
}

function test_the_calls_of_the_readme_do_what_it_says(): void
{
    $expected = <<<'SAID'
        fence: a number
        extended: true
        left: 60
        lost: false
        released: true
        worked
        both: true
        shared: true
        order-7: true
        released: true
        session: true

        SAID;
    same($expected, stream_get_contents(started(programs()[1])), 'what it said');
}

$failed = 0;
foreach (get_defined_functions()['user'] as $name) {
    if (!str_starts_with($name, 'test_') || !str_contains($name, $argv[1] ?? '')) {
        continue;
    }
    call('FLUSHALL');
    try {
        $name();
        echo "ok      $name\n";
    } catch (Throwable $thrown) {
        $failed++;
        echo "FAILED  $name: $thrown\n";
    }
}
exit($failed === 0 ? 0 : 1);
