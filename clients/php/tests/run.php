<?php

// The package's own tests: every function whose name begins with `test_`, against one server.

declare(strict_types=1);

use RedisLock\AlreadyHeld;
use RedisLock\Lock;
use RedisLock\LockException;
use RedisLock\LockLost;
use RedisLock\Locks;
use RedisLock\ModuleMissing;
use RedisLock\NotAcquired;
use RedisLock\NotHeld;
use RedisLock\NotReplicated;
use RedisLock\Observer;
use RedisLock\ServerError;
use RedisLock\Unavailable;

require __DIR__ . '/../autoload.php';
require __DIR__ . '/predis.php';
require __DIR__ . '/server.php';
require __DIR__ . '/checks.php';

/** Collects what the observer hears. */
final class Heard extends Observer
{
    /** @var list<string> */
    public array $lines = [];

    public function waited(Lock $lock, float $seconds, string $outcome): void
    {
        $this->lines[] = "waited: $outcome";
    }

    public function granted(Lock $lock): void
    {
        $this->lines[] = 'granted';
    }

    public function lost(Lock $lock): void
    {
        $this->lines[] = 'lost';
    }

    public function unavailable(LockException $error): void
    {
        $this->lines[] = 'unavailable: ' . $error->getMessage();
    }
}

function test_using_holds_the_lock_and_releases_it(): void
{
    $lock = locks()->lock('k');
    $found = $lock->using(fn (int $fence) => [$fence, call('LOCK.CHECK', 'k', $lock->token()) > 0]);
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
    same(NotAcquired::class, thrown(fn () => $lock->using(fn () => null, 1.0))::class, 'thrown');
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

/** @return array<string, object> clients with another database and a prefix */
function clients_with_prefix(): array
{
    $redis = connection();
    $redis->select(3);
    $redis->setOption(Redis::OPT_PREFIX, 'p:');
    $redis->setOption(Redis::OPT_SERIALIZER, Redis::SERIALIZER_PHP);
    $parameters = ['host' => HOST, 'port' => port(), 'database' => 3];
    return ['phpredis' => $redis, 'Predis' => new Predis\Client($parameters, ['prefix' => 'p:'])];
}

function test_a_client_lends_its_address_database_and_prefix(): void
{
    $other = connection();
    $other->select(3);
    foreach (clients_with_prefix() as $name => $client) {
        $lock = (new Locks($client))->lock('k');
        $lock->acquire();
        same(true, $other->rawCommand('LOCK.CHECK', 'p:k', $lock->token()) > 0, "$name: it is held there");
        same(true, $lock->release(), "$name: released");
    }
}

/** Waits longer than a wait stays on one connection. */
function test_a_long_wait_opens_two_connections_and_keeps_its_place(): void
{
    call('LOCK.ACQUIRE', 'k', 'other', 'PX', 6500);
    $lock = locks()->lock('k');
    $before = opened();
    behind_the_first_one('k');
    [$fence, $took] = timed(fn () => $lock->acquire(30.0));
    same(true, $fence !== null && $took > 6.0 && $took < 10.0, "it was granted after $took s");
    // The two of the wait, those of the child, and that of this question.
    same(true, opened() - $before <= 2 + 2 + 1, 'few connections');
    same(true, call('LOCK.CHECK', 'k', $lock->token()) > 0, 'it was first');
    same(true, $lock->release(), 'released');
}

function opened(): int
{
    return (int) connection()->info('stats')['total_connections_received'];
}

/** Takes a place for another token once this process waits. */
function behind_the_first_one(string $key): void
{
    if (pcntl_fork() === 0) {
        $redis = connection();
        while ($redis->rawCommand('LOCK.QUEUE', $key, 'behind', 'KEEP', 60000) !== 2) {
            $redis->rawCommand('LOCK.CANCEL', $key, 'behind');
            usleep(5000);
        }
        posix_kill(posix_getpid(), SIGKILL);
    }
}

function test_a_wait_doesnt_end_a_session(): void
{
    $locks = locks();
    $session = $locks->lock('held', session: true);
    $session->acquire();
    call('LOCK.ACQUIRE', 'k', 'other', 'PX', 60000);
    same(null, $locks->lock('k')->acquire(3.0), 'the fence');
    same(null, $locks->lock('k', session: true)->acquire(3.0), "a session's fence");
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
    call('LOCK.EXTEND', 'k', $lock->token(), 'NOSESSION');
    same([0, true, 1], [$tie(), $lock->extend(60.0), $tie()], 'the tie, extended, the tie');
    unset($lock);
    until('it is free', fn () => call('LOCK.INFO', 'k') === null);
}

function test_a_refused_command_doesnt_end_a_session(): void
{
    $lock = locks()->lock('k', session: true);
    $lock->acquire();
    call('ACL', 'SETUSER', 'default', '-lock.extend');
    $thrown = thrown(fn () => $lock->extend(10.0));
    call('ACL', 'SETUSER', 'default', '+lock.extend');
    same([ServerError::class, 'NOPERM'], [$thrown::class, substr($thrown->getMessage(), 0, 6)], 'thrown');
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

/** Kills the connection after the release, so that the reply is lost. */
function test_a_release_whose_answer_is_lost_was_a_release(): void
{
    $lock = locks()->lock('k');
    $lock->acquire();
    $released = stopped(function () use ($lock) {
        if (pcntl_fork() === 0) {
            usleep(200_000);
            signal_server(SIGCONT);
            posix_kill(posix_getpid(), SIGKILL);
        }
        return $lock->release();
    });
    same([true, false], [$released, $lock->isLost()], 'released, lost');
    same(null, call('LOCK.INFO', 'k'), 'after it');
}

function test_a_new_token_follows_a_release_without_a_reply(): void
{
    $lock = (new Locks('redis://' . HOST . ':' . proxy_that_loses_a_reply('LOCK.RELEASE')))->lock('k');
    $lock->acquire();
    $first = $lock->token();
    same(true, $lock->release(), 'released');
    $lock->acquire();
    same(true, $first !== $lock->token(), 'another token');
    same(true, $lock->release(), 'released again');
}

function test_every_call_returns_in_time_though_the_server_stands_still(): void
{
    $heard = new Heard();
    $locks = locks(commandTimeout: 0.5, observer: $heard);
    [$tried, $waits] = [$locks->lock('tried'), locks(commandTimeout: 3.0)->lock('waits')];
    [$released, $extended, $used, $gone] = array_map($locks->lock(...), ['released', 'extended', 'used', 'gone']);
    array_map(fn (Lock $lock) => $lock->acquire(), [$released, $extended, $used, $gone]);
    $used->release();
    stopped(function () use ($tried, $waits, $released, $extended, $used, &$gone): void {
        $calls = [
            'try' => [0.5, fn () => $tried->tryAcquire()],
            'wait' => [1.2, fn () => $waits->acquire(1.2)],
            'short wait' => [0.1, fn () => $waits->acquire(0.1)],
            'release' => [0.5, fn () => $released->release()],
            'extend' => [0.5, fn () => $extended->extend(60.0)],
            'left' => [0.5, fn () => $extended->left()],
            'owned' => [0.5, fn () => $extended->owned()],
        ];
        foreach ($calls as $what => [$expected, $call]) {
            [$thrown, $took] = timed(fn () => thrown($call));
            same(Unavailable::class, $thrown::class, $what);
            same(1, preg_match('/^no answer from 127.0.0.1:\d+, tried for [\d.]+ s/', $thrown->getMessage()), "$what: $thrown");
            in_time($expected, $took, $what);
        }
        [, $took] = timed(function () use (&$gone): void {
            $gone = null;
        });
        in_time(0.5, $took, 'a destructor');
    });
    same(true, $extended->release(), 'the lock that could not be extended is held');
    foreach (['tried', 'waits', 'released', 'gone'] as $key) {
        until("nothing is left at $key", fn () => call('LOCK.INFO', $key) === null);
    }
    same(1, count(preg_grep('/^unavailable/', $heard->lines)), 'what the destructor said');
}

function test_the_block_keeps_its_result_and_its_error_though_no_server_replies(): void
{
    $heard = new Heard();
    $lock = locks(observer: $heard)->lock('k');
    $failure = new DomainException('of the work');
    $stop = fn () => signal_server(SIGSTOP);
    [$result, $took] = timed(fn () => $lock->using(function () use ($stop) {
        $stop();
        return 'done';
    }));
    signal_server(SIGCONT);
    same('done', $result, 'the result');
    in_time(1.0, $took, 'the block');
    same($failure, thrown(fn () => $lock->using(function () use ($stop, $failure) {
        $stop();
        throw $failure;
    })), 'thrown');
    signal_server(SIGCONT);
    same(2, count(preg_grep('/^unavailable: no answer/', $heard->lines)), 'what the observer heard');
    until('nothing is left', fn () => call('LOCK.INFO', 'k') === null);
}

function test_a_release_without_a_server_is_made_up_for(): void
{
    $lock = locks(commandTimeout: 1.5)->lock('k');
    $lock->acquire();
    $token = $lock->token();
    call('REPLICAOF', '127.0.0.1', '1');
    $thrown = thrown(fn () => $lock->release());
    call('REPLICAOF', 'NO', 'ONE');
    same(Unavailable::class, $thrown::class, "thrown: $thrown");
    same(1, preg_match('/the server is a replica.*ends with its lease, in (2\d|30) s/', $thrown->getMessage()), "$thrown");
    same(true, call('LOCK.CHECK', 'k', $token) > 0, 'it is left behind');
    until('it is released', fn () => !$lock->owned());
}

function test_a_token_of_several_locks_makes_up_for_each_release(): void
{
    $locks = locks();
    $held = array_map(fn (string $key) => $locks->lock($key, token: 'host'), ['a', 'b']);
    fail_to_release(...$held);
    until('both are released', fn () => !$held[0]->owned() && call('LOCK.INFO', 'b') === null);
}

function test_a_token_that_acquires_a_key_again_makes_up_for_the_other_keys(): void
{
    $locks = locks(commandTimeout: 1.5);
    fail_to_release($locks->lock(['a', 'b'], token: 'host'));
    $lock = $locks->lock('a', token: 'host');
    $lock->acquire();
    until('only the key held again is held', fn () => $lock->owned() && call('LOCK.INFO', 'b') === null);
}

function test_a_failed_release_isnt_in_the_way_of_the_next_acquire(): void
{
    foreach ([0.0, 5.0] as $wait) {
        $locks = locks();
        $lock = $locks->lock('k');
        fail_to_release($lock);
        same(true, $lock->acquire($wait) !== null, "granted within $wait s");
        $lock->release();
        fail_to_release($lock);
        same(true, $locks->lock('k')->acquire($wait) !== null, "granted to another object within $wait s");
    }
}

/** The server replies with READONLY until the acquire has begun. */
function test_a_failed_release_isnt_in_the_way_of_an_acquire_that_begins_in_the_outage(): void
{
    foreach ([0.0, 5.0] as $wait) {
        $lock = locks(commandTimeout: 1.5)->lock('k');
        $lock->acquire();
        call('REPLICAOF', '127.0.0.1', '1');
        same(Unavailable::class, thrown(fn () => $lock->release())::class, 'thrown');
        $before = refused();
        $child = in_child(function () use ($before): void {
            until('the acquire is refused', fn () => refused() > $before);
            call('REPLICAOF', 'NO', 'ONE');
        });
        same(true, $lock->acquire($wait) !== null, "granted within $wait s");
        ended($child);
        same(true, $lock->release(), 'released');
    }
}

/** Returns how many commands the server has refused because it is a replica. */
function refused(): int
{
    $errors = connection()->info('errorstats');
    return (int) substr($errors['errorstat_READONLY'] ?? 'count=0', strlen('count='));
}

function test_a_failed_release_is_made_up_for_after_calls_in_the_outage(): void
{
    $locks = locks(commandTimeout: 0.4);
    $lock = $locks->lock('k');
    $lock->acquire();
    call('REPLICAOF', '127.0.0.1', '1');
    same(Unavailable::class, thrown(fn () => $lock->release())::class, 'thrown');
    same(0.0, $locks->lock('other')->left(), 'a call that a replica replies to');
    call('REPLICAOF', 'NO', 'ONE');
    until('it is released', fn () => $locks->lock('other')->left() === 0.0 && call('LOCK.INFO', 'k') === null);
}

function test_a_failed_release_is_made_up_for_until_the_extended_lease_ends(): void
{
    $lock = locks(commandTimeout: 0.4)->lock('k', lease: 1.0, keep: 0.1);
    $lock->acquire();
    $lock->extend(60.0);
    call('REPLICAOF', '127.0.0.1', '1');
    same(Unavailable::class, thrown(fn () => $lock->release())::class, 'thrown');
    $end = hrtime(true) + 1.1e9;
    until('the lease of the option is over', fn () => hrtime(true) > $end);
    call('REPLICAOF', 'NO', 'ONE');
    until('it is released', fn () => !$lock->owned() && call('LOCK.INFO', 'k') === null);
}

/** Acquires the locks, and releases them while the server is a replica. */
function fail_to_release(Lock ...$locks): void
{
    array_map(fn (Lock $lock) => $lock->acquire(), $locks);
    call('REPLICAOF', '127.0.0.1', '1');
    $thrown = array_map(fn (Lock $lock) => thrown(fn () => $lock->release())::class, $locks);
    call('REPLICAOF', 'NO', 'ONE');
    same(array_fill(0, count($locks), Unavailable::class), $thrown, 'thrown');
}

function test_a_wait_without_a_limit_is_reported_and_goes_on(): void
{
    $heard = new Heard();
    $lock = locks(commandTimeout: 1.5, observer: $heard)->lock('k');
    signal_server(SIGSTOP);
    if (pcntl_fork() === 0) {
        sleep(3);
        signal_server(SIGCONT);
        posix_kill(posix_getpid(), SIGKILL);
    }
    same(true, $lock->acquire(INF) > 0, 'the fence');
    same(1, preg_match('/^unavailable: no answer from .*; the wait goes on$/', $heard->lines[0]), $heard->lines[0]);
    same(['granted', 'waited: granted'], array_slice($heard->lines, 1), 'what else it heard');
    same(true, $lock->release(), 'released');
}

function test_a_signal_ends_a_wait_though_the_server_stands_still(): void
{
    foreach ([true, false] as $isStopped) {
        pcntl_async_signals(true);
        pcntl_signal(SIGALRM, fn () => throw new DomainException('stop'));
        $lock = locks()->lock('k');
        call('LOCK.ACQUIRE', 'k', 'other', 'PX', 60000);
        $began = hrtime(true);
        $isStopped && signal_server(SIGSTOP);
        pcntl_alarm(1);
        $thrown = thrown(fn () => $lock->acquire(INF));
        pcntl_async_signals(false);
        signal_server(SIGCONT);
        same(DomainException::class, $thrown::class, 'thrown');
        in_time(1.0, (hrtime(true) - $began) / 1e9, 'the signal');
        call('LOCK.RELEASE', 'k', 'other');
        until('nothing is left', fn () => call('LOCK.INFO', 'k') === null);
    }
}

function test_connects_that_hang_are_given_up(): void
{
    $full = stream_socket_server('tcp://' . HOST . ':0', $code, $why, STREAM_SERVER_BIND | STREAM_SERVER_LISTEN, stream_context_create(
        ['socket' => ['backlog' => 1]],
    ));
    $address = stream_socket_get_name($full, false);
    $waiting = array_map(fn () => stream_socket_client("tcp://$address", $code, $why, 1.0, STREAM_CLIENT_ASYNC_CONNECT), range(1, 4));
    [$thrown, $took] = timed(fn () => thrown(fn () => (new Locks($address, commandTimeout: 0.4))->lock('k')->tryAcquire()));
    same("no connection to $address, tried for 0.4 s", $thrown->getMessage(), 'thrown');
    in_time(0.4, $took, 'the try');
}

function test_wrong_arguments_are_refused_before_anything_is_sent(): void
{
    $locks = new Locks('redis://127.0.0.1:1');
    $lock = locks()->lock('k');
    $lock->acquire();
    $calls = [
        'keys must not be empty' => fn () => $locks->lock([]),
        'keys must be strings' => fn () => $locks->lock([5]),
        'keys must be different' => fn () => $locks->lock(['a', 'a']),
        'token must not be' => fn () => $locks->lock('k', token: '*'),
        'token must have' => fn () => $locks->lock('k', token: ''),
        'permits need a limit' => fn () => $locks->lock('k', permits: 1),
        'permits must not be greater' => fn () => $locks->lock('k', limit: 1, permits: 2),
        'limit must be' => fn () => $locks->lock('k', limit: 0),
        'data must have' => fn () => $locks->lock('k', data: str_repeat('x', 1025)),
        'replicas must be' => fn () => $locks->lock('k', replicas: 1001),
        'redis must be' => fn () => new Locks('http://127.0.0.1'),
    ];
    foreach ([0.0, -1.0, NAN, INF, 1e300] as $wrong) {
        $times = [
            'lease must be' => [fn () => $locks->lock('k', lease: $wrong), fn () => $lock->extend($wrong)],
            'keep must be' => [fn () => $locks->lock('k', keep: $wrong)],
            'commandTimeout must be' => [fn () => new Locks('redis://127.0.0.1:1', commandTimeout: $wrong)],
        ];
        if ($wrong !== 0.0) {
            $times['atLeast must be'] = [fn () => $locks->lock('k', atLeast: $wrong)];
        }
        if ($wrong !== 0.0 && $wrong !== INF) {
            $times['wait must be'] = [fn () => $locks->lock('k', wait: $wrong), fn () => $lock->acquire($wrong)];
        }
        foreach ($times as $start => $of) {
            foreach ($of as $call) {
                $thrown = thrown($call);
                same([InvalidArgumentException::class, 0], [$thrown::class, strpos($thrown->getMessage(), $start)], "$thrown");
            }
        }
    }
    foreach ($calls as $start => $call) {
        $thrown = thrown($call);
        same([InvalidArgumentException::class, 0], [$thrown::class, strpos($thrown->getMessage(), $start)], "$thrown");
    }
    same(TypeError::class, thrown(fn () => new Locks(new stdClass()))::class, 'another object');
    same(true, $lock->release(), 'the lock is held');
}

function test_an_object_acquires_once_unless_it_is_reentrant(): void
{
    $locks = locks();
    $lock = $locks->lock('k');
    same(NotHeld::class, thrown(fn () => $lock->release())::class, 'before the first acquire');
    $lock->acquire();
    $thrown = thrown(fn () => $lock->acquire());
    same([AlreadyHeld::class, true], [$thrown::class, str_contains($thrown->getMessage(), 'reentrant')], 'acquired again');
    same([true, NotHeld::class], [$lock->release(), thrown(fn () => $lock->release())::class], 'released twice');
    $again = $locks->lock('k', reentrant: true);
    same($again->acquire(), $again->acquire(), 'the fences');
    same([true, true], [$again->release(), $again->release()], 'released twice');
    same(null, call('LOCK.INFO', 'k'), 'after it');
}

function test_a_lost_lock_leaves_none_of_its_keys_and_holds(): void
{
    $lock = locks()->lock(['k', 'other'], lease: 2.0, reentrant: true);
    $lock->acquire();
    $lock->acquire();
    call('DEL', 'k');
    call('LOCK.EXTEND', 'other', $lock->token(), 'PX', 60000);
    until('the lease is over', fn () => $lock->isLost());
    same(false, $lock->release(), 'the release');
    until('the other key is free', fn () => call('LOCK.INFO', 'other') === null);
}

function test_an_object_that_ends_releases_its_lock(): void
{
    $lock = locks()->lock('k');
    $lock->acquire();
    unset($lock);
    same(null, call('LOCK.INFO', 'k'), 'after it');
    $kept = locks()->lock('k', autoRelease: false);
    $kept->acquire();
    $token = $kept->token();
    unset($kept);
    same(true, call('LOCK.CHECK', 'k', $token) > 0, 'it is kept');
}

function test_a_program_that_dies_of_an_exception_releases_its_locks(): void
{
    $program = '<?php require ' . var_export(realpath(__DIR__ . '/../autoload.php'), true) . ';'
        . '$lock = (new RedisLock\Locks("redis://127.0.0.1:' . port() . '"))->lock("k");'
        . '$lock->acquire(); throw new Exception("the end");';
    same(true, str_contains(stream_get_contents(started($program)), 'the end'), 'what it said');
    same(null, call('LOCK.INFO', 'k'), 'after it');
}

function test_a_forked_process_leaves_the_lock_alone(): void
{
    $lock = locks()->lock('k');
    $lock->acquire();
    $child = pcntl_fork();
    if ($child === 0) {
        $token = $lock->token();
        unset($lock);
        posix_kill(posix_getpid(), SIGKILL);
    }
    pcntl_waitpid($child, $status);
    same([true, true], [$lock->left() > 0, $lock->release()], 'left, released');
}

function test_a_block_that_a_forked_process_leaves_releases_nothing(): void
{
    $test = getmypid();
    foreach (['returns' => fn () => 'done', 'throws' => fn () => throw new Exception('of the child')] as $how => $end) {
        $lock = locks()->lock('k');
        try {
            $lock->using(function () use ($lock, $how, $end): mixed {
                $child = pcntl_fork();
                if ($child === 0) {
                    return $end();
                }
                ended($child);
                return same(true, $lock->owned(), "held after the child $how");
            });
        } finally {
            getmypid() === $test || posix_kill(getmypid(), SIGKILL);
        }
    }
}

function test_a_forked_process_holds_nothing_and_loses_nothing(): void
{
    $heard = new Heard();
    $locks = locks(observer: $heard);
    $lock = $locks->lock('k');
    $lock->acquire();
    $answer = answer_of_child(fn () => json_encode([
        thrown(fn () => $lock->release())::class,
        thrown(fn () => $lock->extend(10.0))::class,
        [$locks->releaseAll(), $lock->owned(), $lock->isLost(), $lock->remaining()],
        $heard->lines,
    ]));
    same([NotHeld::class, NotHeld::class, [0, false, false, 0], ['granted']], json_decode($answer), 'there');
    same([true, 1], [$lock->owned(), $locks->releaseAll()], 'here');
}

function test_a_forked_process_is_another_owner(): void
{
    foreach ([false, true] as $session) {
        [$free, $held] = [locks()->lock('free', session: $session), locks()->lock('held', session: $session)];
        $held->acquire();
        $child = in_child(function () use ($free, $held): void {
            $fences = [$held->tryAcquire(), $free->acquire()];
            call('SET', 'answer', json_encode($fences));
            until('the parent ends it', fn () => false);
        });
        until('the child said what it acquired', fn () => call('GET', 'answer') !== false);
        same([null, true], [json_decode(call('GET', 'answer'))[0], $held->owned()], 'held by the parent');
        same(null, $free->tryAcquire(), 'held by the child');
        posix_kill($child, SIGKILL);
        ended($child);
        same(true, $held->release(), 'released by the parent');
        call('FLUSHALL');
    }
}

/** The handler forks, and throws in the child. */
function test_a_forked_process_doesnt_end_the_wait_of_its_parent(): void
{
    call('LOCK.ACQUIRE', 'k', 'other', 'PX', 60000);
    $test = getmypid();
    $waiting = null;
    pcntl_async_signals(true);
    pcntl_signal(SIGALRM, function () use (&$waiting): void {
        $child = pcntl_fork();
        if ($child === 0) {
            throw new DomainException('stop');
        }
        ended($child);
        $waiting = waiters('k');
        call('LOCK.RELEASE', 'k', 'other');
    });
    pcntl_alarm(1);
    try {
        same(true, locks()->lock('k')->acquire(30.0) !== null, 'granted');
    } finally {
        getmypid() === $test || posix_kill(getmypid(), SIGKILL);
        pcntl_async_signals(false);
    }
    same(1, $waiting, 'waiters after the child');
}

function test_at_least_keeps_the_lock_after_its_release(): void
{
    $locks = locks();
    $lock = $locks->lock('k', atLeast: 1.0, lease: 30.0);
    [, $took] = timed(function () use ($lock, $locks): void {
        $lock->acquire();
        same(true, $lock->release(), 'released');
        same(NotHeld::class, thrown(fn () => $lock->release())::class, 'released again');
        same(null, $lock->tryAcquire(), 'the same object');
        same(true, $locks->lock('k')->acquire(5.0) !== null, 'the next one');
    });
    same(true, $took >= 0.95 && $took < 3.0, "after $took s");
}

function test_data_limits_and_release_all(): void
{
    $locks = locks();
    $seats = array_map(fn () => $locks->lock('seats', limit: 2, data: 'why'), range(1, 3));
    $got = array_map(fn (Lock $seat) => $seat->tryAcquire() !== null, $seats);
    same([true, true, false], $got, 'a limit alone is a semaphore');
    $holder = call('LOCK.INFO', 'seats')[3][0];
    same('why', $holder[array_search('data', $holder, true) + 1], 'the data');
    call('LOCK.RELEASE', 'seats', $seats[0]->token());
    same([1, 0], [$locks->releaseAll(), $locks->releaseAll()], 'released');
    same(null, call('LOCK.INFO', 'seats'), 'after it');
}

function test_the_holders_of_a_key_can_be_released_by_who_finds_them(): void
{
    same([], locks()->holders('k'), 'holders of a free key');
    $lock = locks()->lock('k', lease: 60.0, data: 'refund 7');
    $fence = $lock->acquire();
    [$found] = locks()->holders('k');
    same([$lock->token(), $fence, 'refund 7'], [$found->token(), $found->fence(), $found->data()], 'it');
    same(true, $found->remaining() > 55.0 && $found->remaining() <= 60.0, "left: {$found->remaining()}");
    unset($found);
    same([true, true], [$lock->owned(), locks()->holders('k')[0]->extend(90.0)], 'the end of the object, extended');
    same(true, $lock->left() > 80.0, 'the server extended it');
    same([true, false], [locks()->holders('k')[0]->release(), $lock->release()], 'released');
}

function test_all_holders_of_a_shared_key_are_found(): void
{
    $prefixed = new Locks(clients_with_prefix()['phpredis']);
    $readers = [$prefixed->lock('k', shared: true), $prefixed->lock('k', limit: 9, permits: 2)];
    array_map(fn (Lock $reader) => $reader->acquire(), $readers);
    $released = array_map(fn (Lock $found) => $found->release(), $prefixed->holders('k'));
    same([true, true, []], [...$released, $prefixed->holders('k')], 'released, and then');
}

function test_holders_are_hidden_from_a_user_that_may_not_write(): void
{
    locks()->lock('k', autoRelease: false)->acquire();
    call('ACL', 'SETUSER', 'reader', 'on', '>secret', '%R~*', '+@all');
    $reader = new Locks('redis://reader:secret@' . HOST . ':' . port());
    $thrown = thrown(fn () => $reader->holders('k'));
    same([ServerError::class, 1], [$thrown::class, preg_match('/no right/', $thrown->getMessage())], "$thrown");
}

function test_the_remaining_lease_needs_no_server(): void
{
    $lock = locks()->lock('k', lease: 60.0);
    same(0.0, $lock->remaining(), 'before the grant');
    $lock->acquire();
    same(true, stopped(fn () => $lock->remaining() > 55.0 && $lock->remaining() <= 60.0), 'meanwhile');
    $lock->release();
    same(0.0, $lock->remaining(), 'after the release');
    $session = locks()->lock('s', session: true);
    $session->acquire();
    same(INF, $session->remaining(), 'of a session');
}

function test_too_few_replicas_release_what_was_granted(): void
{
    foreach ([0.0, 1.0] as $wait) {
        $thrown = thrown(fn () => locks()->lock('k', replicas: 1)->acquire($wait));
        same(NotReplicated::class, $thrown::class, 'thrown');
        same(null, call('LOCK.INFO', 'k'), 'after it');
    }
}

function test_the_observer_hears_of_waits_grants_and_losses(): void
{
    $heard = new Heard();
    $lock = locks(observer: $heard)->lock('k');
    $lock->acquire();
    call('DEL', 'k');
    same([false, false], [$lock->extend(10.0), $lock->release()], 'extended, released');
    call('LOCK.ACQUIRE', 'k', 'other', 'PX', 60000);
    $lock->acquire(1.0);
    same(['granted', 'lost', 'waited: not acquired'], $heard->lines, 'what it heard');
    $bad = new class () extends Observer {
        public function granted(Lock $lock): void
        {
            throw new Exception('of the hook');
        }
    };
    same(true, locks(observer: $bad)->lock('free')->acquire() > 0, 'a hook that throws');
}

function test_no_text_shows_the_token(): void
{
    ini_set('zend.exception_ignore_args', '0');
    call('CONFIG', 'SET', 'requirepass', 'hunter2');
    $locks = new Locks(login(), commandTimeout: 0.2);
    $lock = $locks->lock('k', token: 'confidential');
    $lock->acquire();
    $errors = [
        stopped(fn () => thrown(fn () => $lock->extend(10.0))),
        stopped(fn () => thrown(fn () => $locks->lock('k', token: 'confidential')->acquire(0.3))),
        stopped(fn () => thrown(fn () => $lock->release())),
        thrown(fn () => new Locks(login() . ':wrong')),
        thrown(fn () => $locks->lock('k', token: 'confidential', lease: NAN)),
        thrown(fn () => serialize($lock)),
    ];
    (new Locks(login()))->lock('other')->acquire();
    connection_with('hunter2')->rawCommand('CONFIG', 'SET', 'requirepass', '');
    $texts = '';
    foreach ([$lock, $locks, ...$errors] as $value) {
        ob_start();
        var_dump($value);
        $texts .= ob_get_clean() . print_r($value, true) . @var_export($value, true) . json_encode($value);
        $texts .= print_r((array) $value, true) . ($value instanceof Throwable ? $value : '');
    }
    same([true, false, false], array_map(fn ($word) => str_contains($texts, $word), ['127.0.0.1', 'confidential', 'hunter2']), 'in the texts');
}

function login(): string
{
    return 'redis://default:hunter2@' . HOST . ':' . port();
}

function connection_with(string $password): Redis
{
    $redis = connection();
    $redis->auth($password);
    return $redis;
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

function test_a_try_at_a_server_that_is_gone_fails_in_time(): void
{
    $lock = (new Locks('redis://127.0.0.1:1'))->lock('k');
    [$thrown, $took] = timed(fn () => thrown(fn () => $lock->tryAcquire()));
    same('127.0.0.1:1: connection refused, tried for 1 s', $thrown->getMessage(), 'thrown');
    in_time(1.0, $took, 'the try');
}

function test_the_cause_of_an_outage_is_in_words(): void
{
    $causes = [
        'unix:///no/such.sock' => '/no/such.sock: no such file or directory',
        'no.such.host.invalid' => 'no.such.host.invalid:6379: name or service not known',
    ];
    foreach ($causes as $url => $cause) {
        $thrown = thrown(fn () => (new Locks($url, commandTimeout: 0.2))->lock('k')->tryAcquire());
        same(["$cause, tried for 0.2 s"], [$thrown->getMessage()], $url);
    }
}

function test_a_wrong_password_isnt_tried_for_ever(): void
{
    $lock = (new Locks('redis://nobody:wrong@' . HOST . ':' . port()))->lock('k');
    $thrown = thrown(fn () => $lock->acquire(INF));
    same([ServerError::class, 'WRONGPASS'], [$thrown::class, substr($thrown->getMessage(), 0, 9)], 'thrown');
}

function test_the_version_is_that_of_the_module(): void
{
    $composer = json_decode(file_get_contents(__DIR__ . '/../composer.json'), true);
    preg_match('/^lock_version:(\S+)/m', connection()->rawCommand('INFO', 'lock'), $module);
    same($module[1], $composer['version'], 'the version');
}

function readme(): string
{
    return file_get_contents(__DIR__ . '/../README.md');
}

/** Runs a part of a program of the README, and returns what it printed. */
function run_part(string $name, array $here): string
{
    preg_match('/^<!-- run: ' . $name . ' -->\n```php\n(.*?)^```/ms', readme(), $found);
    $start = '<?php use RedisLock\Locks;';
    foreach (['autoload.php', 'tests/predis.php'] as $file) {
        $start .= 'require ' . var_export(realpath(__DIR__ . "/../$file"), true) . ';';
    }
    return stream_get_contents(started($start . strtr($found[1], $here)));
}

function test_a_first_lock_of_the_readme_is_waited_for(): void
{
    $program = programs(__DIR__ . '/../README.md')[0];
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
        remaining, without asking: 60
        owned: true
        lost: false
        released: true
        worked
        both: true
        shared: true
        released: 2
        again: true
        released: true
        holder: refund 7, true
        session: true
        free: true

        SAID;
    same($expected, stream_get_contents(started(programs(__DIR__ . '/../README.md')[1])), 'what it said');
}

function test_the_log_of_the_readme_says_what_happens(): void
{
    $expected = "granted: [\"orders:42\"]\nwaited: not acquired\n";
    same($expected, stream_get_contents(started(programs(__DIR__ . '/../README.md')[2])), 'what it said');
}

function test_the_clients_of_the_readme_lend_their_address(): void
{
    $said = run_part('clients', ['6379' => (string) port()]);
    same("beside phpredis\nbeside Predis\n", $said, 'what it said');
}

/** @return int the port of a cluster of one node */
function cluster(): int
{
    static $port = null;
    return $port ??= (int) order('cluster', 1)[0];
}

function test_the_cluster_of_the_readme_serves(): void
{
    same("in a cluster\n", run_part('cluster', ['7001' => '1', '7002' => '1', '7003' => (string) cluster()]), 'what it said');
}

function test_clients_of_a_cluster_lend_their_nodes(): void
{
    $address = HOST . ':' . cluster();
    $clients = [
        new RedisCluster(null, [$address]),
        new Predis\Client(["tcp://$address"], ['cluster' => 'redis']),
    ];
    foreach ($clients as $client) {
        same(true, (new Locks($client))->lock('k')->using(fn () => true), $client::class);
    }
    $sharded = new Predis\Client(["tcp://$address", "tcp://$address"], ['cluster' => 'predis']);
    same(InvalidArgumentException::class, thrown(fn () => new Locks($sharded))::class, 'sharded by Predis');
}

/** @return int the port of a sentinel of the tests' server */
function sentinel(): int
{
    static $port = null;
    return $port ??= start_sentinel('mymaster', port());
}

/** @return int the port of a new sentinel */
function start_sentinel(string|int ...$watched): int
{
    return (int) order('sentinel', ...$watched)[0];
}

function test_the_sentinel_of_the_readme_names_the_primary(): void
{
    $here = ['26379' => '1', '26380' => '1', '26381' => (string) sentinel()];
    same("at the primary\n", run_part('sentinel', $here), 'what it said');
    $predis = new Predis\Client(['tcp://' . HOST . ':' . sentinel()], ['replication' => 'sentinel', 'service' => 'mymaster']);
    same(true, (new Locks($predis))->lock('k')->using(fn () => true), 'Predis');
    $unknown = new Locks('nobody', sentinels: [HOST . ':' . sentinel()]);
    same(ServerError::class, thrown(fn () => $unknown->lock('k')->tryAcquire())::class, 'an unknown name');
}

function test_a_sentinel_that_replies_with_an_error_is_passed_over(): void
{
    $refusing = [
        'without the name' => HOST . ':' . start_sentinel(),
        'with a password' => HOST . ':' . start_sentinel_with_password(),
        'without SENTINEL' => HOST . ':' . port(),
    ];
    foreach ($refusing as $what => $address) {
        $locks = new Locks('mymaster', sentinels: [$address, HOST . ':' . sentinel()]);
        same(true, $locks->lock('k')->using(fn () => true), "a sentinel $what");
        $alone = new Locks('mymaster', sentinels: [$address]);
        $thrown = thrown(fn () => $alone->lock('k')->tryAcquire());
        same(true, $thrown instanceof ServerError || $thrown instanceof ModuleMissing, "alone: $thrown");
    }
    $locks = new Locks('mymaster', commandTimeout: 0.3, sentinels: [HOST . ':1', $refusing['without the name']]);
    same(Unavailable::class, thrown(fn () => $locks->lock('k')->tryAcquire())::class, 'beside one that is gone');
}

function start_sentinel_with_password(): int
{
    $port = start_sentinel();
    connection($port)->rawCommand('ACL', 'SETUSER', 'default', '>secret');
    return $port;
}

/** The wait lasts longer than until the sentinel is asked again. */
function test_a_wait_outlives_a_sentinel_that_forgot_the_name(): void
{
    $port = start_sentinel('mymaster', port());
    call('LOCK.ACQUIRE', 'k', 'other', 'PX', 4000);
    $child = in_child(function () use ($port): void {
        until('it waits', fn () => waiters('k') === 1);
        connection($port)->rawCommand('SENTINEL', 'REMOVE', 'mymaster');
    });
    $lock = (new Locks('mymaster', sentinels: [HOST . ":$port"]))->lock('k');
    same(true, $lock->acquire(30.0) !== null, 'granted');
    ended($child);
    same(true, $lock->release(), 'released');
}

function test_the_tls_of_the_readme_is_checked(): void
{
    [, $port, $certificate] = order('tls');
    $here = ['6390' => $port, "'ca.crt'" => "'$certificate'"];
    same("encrypted\n", run_part('tls', $here), 'what it said');
    $predis = new Predis\Client(['scheme' => 'tls', 'host' => 'localhost', 'port' => $port, 'ssl' => ['cafile' => $certificate]]);
    same(true, (new Locks($predis))->lock('k')->using(fn () => true), 'Predis');
    $thrown = thrown(fn () => (new Locks("rediss://localhost:$port", commandTimeout: 2.0))->lock('k')->tryAcquire());
    same([Unavailable::class, 1], [$thrown::class, preg_match('/certificate verify failed/', $thrown->getMessage())], "$thrown");
}

/** Installs the package as the README says, from a path and from a git repository. */
function test_composer_installs_the_package(): void
{
    preg_match_all('/^```json\n(.*?)^```/ms', readme(), $found);
    $folder = sys_get_temp_dir() . '/composer-' . getmypid();
    $package = realpath(__DIR__ . '/..');
    mkdir("$folder/clone/clients", recursive: true);
    $run = function (string $command) use ($folder): void {
        exec("cd $folder && ($command) 2>&1", $said, $code);
        same(0, $code, "$command: " . implode("\n", $said));
    };
    $run("cp -rL $package clone/clients/php && cd clone && git init -q -b main && git add -A"
        . ' && git -c user.name=t -c user.email=t@t commit -qm t');
    $here = ['../redis-lock/clients/php' => $package, 'https://github.com/redis-lock/redis-lock' => "file://$folder/clone"];
    foreach ($found[1] as $index => $json) {
        $project = json_decode(strtr($json, $here), true);
        $project['repositories'][] = ['packagist.org' => false];
        mkdir("$folder/$index");
        file_put_contents("$folder/$index/composer.json", json_encode($project));
        $run("cd $index && COMPOSER_ALLOW_SUPERUSER=1 composer --no-interaction --quiet install"
            . " && php -r 'require \"vendor/autoload.php\"; new RedisLock\\Locks(\"localhost\");'");
    }
    $run("rm -rf $folder/*");
    rmdir($folder);
}

run_tests($argv[1] ?? '');
