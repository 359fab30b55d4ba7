<?php

// The package's own tests, against one server: what the conformance suite can't say of phpredis, of
// Predis and of PHP.

declare(strict_types=1);

use RedisLock\{
    Grant, Lock, LockException, LockLost, Locks, NotHeld, Observer, ServerError, Unavailable,
};

require __DIR__ . '/../autoload.php';
require __DIR__ . '/predis.php';
require __DIR__ . '/server.php';
require __DIR__ . '/checks.php';

const README = __DIR__ . '/../README.md';

/** Collects what the observer hears. */
final class Heard extends Observer
{
    /** @var list<string> */
    public array $lines = [];

    public function waited(Lock $lock, float $seconds, string $outcome): void
    {
        $this->lines[] = "waited: $outcome";
    }

    public function granted(Grant $grant): void
    {
        $this->lines[] = 'granted';
    }

    public function lost(Grant $grant): void
    {
        $this->lines[] = 'lost';
    }

    public function unavailable(LockException $error): void
    {
        $this->lines[] = 'unavailable: ' . $error->getMessage();
    }
}

function test_a_client_lends_its_database_and_prefix(): void
{
    [$redis, $there] = [connection(), connection()];
    array_map(fn (Redis $it) => $it->select(3), [$redis, $there]);
    $redis->setOption(Redis::OPT_PREFIX, 'p:');
    $predis = new Predis\Client(['host' => HOST, 'port' => port(), 'database' => 3], ['prefix' => 'p:']);
    foreach (['phpredis' => $redis, 'Predis' => $predis] as $name => $client) {
        $grant = (new Locks($client))->lock(['a', 'b'])->acquire();
        foreach (['p:a', 'p:b'] as $key) {
            same(true, $there->rawCommand('LOCK.CHECK', $key, $grant->token()) > 0, "$name: $key is held");
        }
        same([true, true], [$grant->owned(), $grant->release()], "$name: owned, released");
    }
}

/** Calls the work with a client that has a login, a database and options, and with another connection. */
function with_busy_client(callable $work): void
{
    [$redis, $other] = [connection(), connection()];
    call('CONFIG', 'SET', 'requirepass', 'hunter2');
    array_map(fn (Redis $it) => $it->auth('hunter2'), [$redis, $other]);
    $redis->select(2);
    $options = [
        Redis::OPT_SERIALIZER => Redis::SERIALIZER_PHP, Redis::OPT_PREFIX => 'p:',
        Redis::OPT_REPLY_LITERAL => true, Redis::OPT_NULL_MULTIBULK_AS_NULL => true,
        Redis::OPT_READ_TIMEOUT => 7.5, Redis::OPT_MAX_RETRIES => 0, Redis::OPT_TCP_KEEPALIVE => 1,
    ];
    array_map($redis->setOption(...), array_keys($options), $options);
    try {
        $work($redis, $other);
    } finally {
        $other->rawCommand('CONFIG', 'SET', 'requirepass', '');
    }
}

/** @return array<int, mixed> the settings that change what phpredis sends and reads */
function settings_of(Redis $redis): array
{
    $constants = (new ReflectionClass(Redis::class))->getConstants();
    $options = array_filter($constants, fn (string $name) => str_starts_with($name, 'OPT_'), ARRAY_FILTER_USE_KEY);
    return [...array_map($redis->getOption(...), $options), 'database' => $redis->getDbNum()];
}

function kill_others(Redis $redis): void
{
    $redis->rawCommand('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
}

/** phpredis fails for good after a lost connection, and takes a late reply for the next one. */
function test_the_settings_of_the_client_change_no_command_and_stay_after_an_outage(): void
{
    with_busy_client(function (Redis $redis, Redis $other): void {
        $before = settings_of($redis);
        $locks = new Locks($redis, commandTimeout: 0.4);
        $set_password = fn (string $password) => $other->rawCommand('CONFIG', 'SET', 'requirepass', $password);
        $outages = [
            'an error of the program' => fn () => $redis->rawCommand('NOSUCH'),
            'in the program, before the first lock' => function () use ($redis, $other): void {
                kill_others($other);
                thrown(fn () => $redis->get('v'));
            },
            'a lost connection' => fn () => kill_others($other),
            'a late reply' => fn () => stopped(fn () => thrown($locks->lock('late')->tryAcquire(...))),
            'a wrong password' => function () use ($redis, $other, $locks, $set_password): void {
                $set_password('another');
                kill_others($other);
                same(ServerError::class, thrown($locks->lock('k')->isLocked(...))::class, 'a wrong password');
                same(RedisException::class, thrown(fn () => $redis->set('v', 'x'))::class, "the program's command");
                $set_password('hunter2');
            },
        ];
        foreach ($outages as $how => $break) {
            $break();
            $grant = $locks->lock('k', data: 'why')->acquire();
            same([null, null], [$locks->lock('k')->tryAcquire(), $redis->getLastError()], "$how: another one, its error");
            same([true, true], [$grant->extend(60.0), $grant->release()], "$how: extended, released");
            $redis->set('v', [$how]);
            same([[$how], $before], [$redis->get('v'), settings_of($redis)], "$how: the settings");
        }
    });
}

function test_the_programs_commands_never_go_to_another_database(): void
{
    $redis = connection();
    $redis->select(3);
    $lock = (new Locks($redis, commandTimeout: 0.3))->lock('k');
    stopped(fn () => thrown($lock->isLocked(...)));
    same(RedisException::class, thrown(fn () => $redis->set('v', 'x'))::class, 'after a late reply');
    same([0, false], [(int) call('EXISTS', 'v'), $lock->isLocked()], 'the key in database 0, the next call');
    $redis->set('v', 'x');
    same([0, 'x'], [(int) call('EXISTS', 'v'), $redis->get('v')], 'the key later');
}

function test_a_transaction_or_a_pipeline_of_the_program_is_a_clear_error(): void
{
    $redis = connection();
    $lock = (new Locks($redis))->lock('k');
    foreach ([Redis::MULTI, Redis::PIPELINE] as $mode) {
        $redis->multi($mode)->set('v', "value $mode");
        $thrown = thrown(fn () => $lock->tryAcquire());
        same([LogicException::class, 1], [$thrown::class, preg_match('/MULTI or a pipeline/', $thrown->getMessage())], "$thrown");
        same([true], $redis->exec(), "what mode $mode had to do");
    }
    foreach (clients() as $name => $client) {
        raw($client, 'MULTI');
        $thrown = thrown(fn () => (new Locks($client))->lock('k')->tryAcquire());
        same([LogicException::class, 1], [$thrown::class, preg_match('/transaction/', $thrown->getMessage())], "$name: $thrown");
        same(null, call('LOCK.INFO', 'k'), "$name: nothing is left");
        same(true, (new Locks($client))->lock('k')->acquire()->release(), "$name: afterwards");
    }
}

/** Its connection may have been lost meanwhile, and no later call comes. */
function test_a_dropped_grant_is_released_and_told_as_a_loss(): void
{
    ini_set('error_log', $log = tempnam(sys_get_temp_dir(), 'log'));
    foreach ([fn () => null, fn () => kill_others(connection())] as $break) {
        file_put_contents($log, '');
        $heard = new Heard();
        $lock = locks(observer: $heard)->lock('k');
        $grant = $lock->acquire();
        $token = $grant->token();
        $break();
        unset($grant);
        same([null, ['granted', 'lost']], [call('LOCK.INFO', 'k'), $heard->lines], 'its holder, what the observer heard');
        $text = file_get_contents($log);
        same([1, false], [preg_match('/a grant of \["k"\] was dropped without a release/', $text), str_contains($text, $token)], $text);
        $lock->acquire()->detach();
        same([true, 1], [call('LOCK.INFO', 'k') !== null, count(file($log))], 'a detached one is held, lines');
        call('DEL', 'k');
    }
    ini_set('error_log', '');
    unlink($log);
}

/** Returns the begin of a program that has locks. */
function program_with_locks(string $arguments = ''): string
{
    return '<?php require ' . var_export(realpath(__DIR__ . '/../autoload.php'), true) . ';'
        . '$make = function (float $seconds) { $redis = new Redis(); $redis->connect("' . HOST . '", ' . port() . '); return $redis; };'
        . "\$locks = new RedisLock\\Locks(\$make, $arguments);";
}

function test_the_end_of_the_program_releases_its_locks(): void
{
    $start = program_with_locks() . '$grants = array_map(fn ($key) => $locks->lock($key)->acquire(), ["a", "b", "c"]);'
        . 'echo count(array_filter($grants)), " held\n";';
    $fails = '$make(1.0)->rawCommand("REPLICAOF", "127.0.0.1", "1"); try { $grants[0]->release(); }'
        . ' catch (RedisLock\Unavailable) { $make(1.0)->rawCommand("REPLICAOF", "NO", "ONE"); }';
    $ends = ['a release that failed' => $fails, 'its last line' => '', 'an exit' => 'exit(1);', 'an exception' => 'throw new Exception("of the program");'];
    foreach ($ends as $how => $end) {
        $said = said_by("$start $end");
        same([true, 0], [str_starts_with($said, "3 held\n"), preg_match('/dropped/', $said)], "$how: $said");
        same(0, call('DBSIZE'), "locks after $how");
    }
}

function test_a_grant_goes_to_another_process(): void
{
    $grant = locks()->lock(['a', 'b'], lease: 5.0)->acquire();
    $passed = [$grant->keys, $grant->token(), $grant->fence];
    $grant->detach();
    same([NotHeld::class, NotHeld::class], [thrown($grant->release(...))::class, thrown($grant->detach(...))::class], 'here');
    $answer = answer_of_child(function () use ($passed): string {
        $adopted = locks()->adopt(...$passed, lease: 60.0);
        return json_encode([$adopted->fence, $adopted->left() > 50.0, $adopted->owned(), $adopted->release()]);
    });
    same([$passed[2], true, true, true], json_decode($answer), 'there');
    same([null, null], [locks()->adopt(...$passed), call('LOCK.INFO', 'a')], 'adopted later');
    $session = locks()->lock('k', session: true)->acquire();
    same(LogicException::class, thrown($session->detach(...))::class, 'a session');
    $session->release();
}

function test_one_of_several_processes_computes(): void
{
    call('SET', 'computed', '0');
    $read = fn () => call('GET', 'result') ?: null;
    $compute = function (): string {
        usleep(200_000);
        call('INCR', 'computed');
        call('SET', 'result', 'done');
        return 'done';
    };
    $children = array_map(fn () => in_child(fn () => call('RPUSH', 'results', locks()->once('k', $read, $compute))), range(1, 5));
    array_map(ended(...), $children);
    same(['1', array_fill(0, 5, 'done')], [call('GET', 'computed'), call('LRANGE', 'results', '0', '-1')], 'computed, results');
    same('done', locks()->once('k', $read, fn () => throw new Exception('computed again')), 'later');
    call('DEL', 'result');
    $failure = new Exception('of the computation');
    same($failure, thrown(fn () => locks()->once('k', $read, fn () => throw $failure)), 'a failure');
    same(null, call('LOCK.INFO', 'k'), 'nothing is left');
}

function connections(): int
{
    return (int) connection()->info('clients')['connected_clients'];
}

function test_a_forked_process_holds_nothing_and_has_a_connection_of_its_own(): void
{
    foreach (['a client' => connection(), 'a function' => maker()] as $what => $redis) {
        $heard = new Heard();
        $locks = new Locks($redis, observer: $heard);
        [$lock, $before] = [$locks->lock('k'), connections()];
        $grant = $lock->acquire();
        $answer = answer_of_child(fn () => json_encode([
            thrown($grant->release(...))::class,
            [$grant->extend(10.0), $grant->left(), $grant->isLost(), $locks->releaseAll()],
            $lock->during($grant, fn () => 'the end of its block'),
            $lock->tryAcquire(),
            $locks->lock('other')->acquire()?->release(),
            $heard->lines,
            connections() - $before,
        ]));
        $heard = ['granted', 'waited: not acquired', 'granted'];
        $opened = $redis instanceof Redis ? 1 : 2;
        $expected = [NotHeld::class, [false, 0, false, 0], 'the end of its block', null, true, $heard, $opened];
        same($expected, json_decode($answer), "$what: there");
        same([true, 1], [$grant->owned(), $locks->releaseAll()], "$what: here");
    }
}

/** @return array<string, array{object, callable}> connected clients, and what tells the number of a connection */
function connected_clients(): array
{
    $redis = connection();
    $redis->select(3);
    $nodes = [HOST . ':' . cluster()];
    $cluster = new RedisCluster(null, $nodes, 1.0, 1.0);
    $predis = new Predis\Client(['host' => HOST, 'port' => port()]);
    $predisCluster = new Predis\Client($nodes, ['cluster' => 'redis']);
    $sentinels = new Predis\Client(['tcp://' . HOST . ':' . sentinel()], ['replication' => 'sentinel', 'service' => 'mymaster']);
    $id = fn ($connection) => $connection->executeCommand(Predis\Command\RawCommand::create('CLIENT', 'ID'));
    return [
        'phpredis' => [$redis, fn () => $redis->rawCommand('CLIENT', 'ID')],
        'phpredis, cluster' => [$cluster, fn () => $cluster->rawCommand('k', 'CLIENT', 'ID')],
        'Predis' => [$predis, fn () => $id($predis->getConnection())],
        'Predis, cluster' => [$predisCluster, fn () => $id($predisCluster->getConnection()->getConnectionBySlot(0))],
        'Predis, sentinels' => [$sentinels, fn () => $id($sentinels->getConnection()->getMaster())],
    ];
}

function test_forked_processes_dont_share_a_connection_that_the_first_one_opened(): void
{
    foreach (connected_clients() as $name => [$client, $number]) {
        $locks = new Locks($client);
        $here = $number();
        $answer = answer_of_child(function () use ($locks, $number): string {
            $isReleased = $locks->lock('k')->acquire()->release();
            return json_encode([$number(), $isReleased]);
        });
        [$there, $isReleased] = json_decode($answer);
        same([true, true, true], [$there > 0, $there !== $here, $isReleased], "$name: there");
        same([$here, true], [$number(), $locks->lock('k')->acquire()->release()], "$name: here");
        !$client instanceof Redis || same(3, $client->getDbNum(), 'the database');
    }
}

function test_a_grant_of_another_token_is_an_outage_that_ends_the_connection(): void
{
    foreach (["*2\r\n\$5\r\nother\r\n:7\r\n", ":7\r\n"] as $foreign) {
        $port = proxy(function (string $words, $server) use ($foreign, &$hasLied): ?string {
            $isLie = !$hasLied && str_contains($words, 'LOCK.ACQUIRE');
            $hasLied = $hasLied || $isLie;
            return $isLie ? $foreign : replied($words, $server);
        });
        $grant = (new Locks(maker($port)))->lock('k')->acquire();
        same([$grant->token(), $grant->fence], [holder('k')['token'], holder('k')['fence']], 'the holder');
        same(true, $grant->release(), 'released');
    }
}

/** phpredis would take the late reply for that of the next command. */
function test_what_a_handler_of_a_signal_throws_doesnt_leave_a_late_reply(): void
{
    pcntl_signal(SIGALRM, fn () => throw new DomainException('stop'));
    $locks = new Locks(connection(), commandTimeout: 1.5);
    $grant = $locks->lock('k')->acquire();
    pcntl_async_signals(true);
    try {
        pcntl_alarm(1);
        same(DomainException::class, stopped(fn () => thrown($grant->owned(...)))::class, 'thrown');
    } finally {
        pcntl_async_signals(false);
    }
    same([false, true], [$locks->lock('free')->isLocked(), $grant->release()], 'the replies');
}

function test_an_exception_of_a_hook_changes_nothing(): void
{
    $observer = new class extends Observer {
        public function granted(Grant $grant): void
        {
            throw new Exception('of the hook');
        }
    };
    same('done', locks(observer: $observer)->lock('k')->using(fn () => 'done'), 'the result');
}

function test_a_session_has_a_connection_of_its_own_if_a_function_makes_it(): void
{
    $before = connections();
    $locks = locks();
    [$first, $second] = [$locks->lock('a', session: true)->acquire(), $locks->lock('b', session: true)->acquire()];
    same(3, connections() - $before, 'connections');
    same(true, $first->release(), 'released');
    until('its connection is closed', fn () => connections() - $before === 2);
    same([true, INF], [$second->owned(), $second->left()], 'the other one');
    call('ACL', 'SETUSER', 'default', '-lock.extend');
    $thrown = thrown(fn () => $second->extend(10.0));
    call('ACL', 'SETUSER', 'default', '+lock.extend');
    same([ServerError::class, true], [$thrown::class, $second->owned()], 'a refused command, and it is held');
    kill_others(connection());
    same([false, true], [$second->extend(20.0), $second->isLost()], 'extended after its connection, lost');
}

function test_a_session_that_gets_no_connection_of_its_own_fails_in_time(): void
{
    $locks = new Locks(maker_of(port(), free_port()), commandTimeout: 5.0);
    [$thrown, $took] = timed(fn () => thrown(fn () => $locks->lock('k', session: true)->acquire(0.3)));
    same(Unavailable::class, $thrown::class, 'thrown');
    in_time(0.3, $took, 'thrown');
    same(null, call('LOCK.INFO', 'k'), 'the lock');
}

/** A tie that comes late would move the session to a connection that was closed. */
function test_a_session_whose_tie_gets_no_reply_has_another_token(): void
{
    $held_back = proxy(function (string $words, $server): string {
        str_contains($words, 'SESSION') && usleep(1_500_000);
        return replied($words, $server);
    });
    $locks = new Locks(maker_of(port(), $held_back, port()), commandTimeout: 3.0);
    $grant = $locks->lock('k', session: true, lease: 60.0)->acquire();
    usleep(1_000_000);
    same([false, true], [$grant->isLost(), $grant->owned()], 'lost, held');
    same(true, $grant->release(), 'released');
}

function test_a_session_is_lost_with_the_connection_of_the_programs_client(): void
{
    foreach (clients() as $name => $client) {
        $heard = new Heard();
        $locks = new Locks($client, commandTimeout: 0.4, observer: $heard);
        $grant = $locks->lock('k', session: true)->acquire();
        same([false, INF], [$grant->isLost(), $grant->left()], "$name: held");
        stopped(fn () => thrown(fn () => $locks->lock('other')->isLocked()));
        same([true, 0.0], [$grant->isLost(), $grant->left()], "$name: after a late reply");
        same([false, ['granted', 'lost']], [$grant->release(), $heard->lines], "$name: released, heard");
        $grant = $locks->lock('k', session: true)->acquire();
        raw($client, 'MULTI');
        thrown(fn () => $locks->lock('other')->isLocked());
        same([true, false], [$grant->isLost(), $grant->release()], "$name: after a transaction");
        $grant = $locks->lock('k', session: true)->acquire();
        kill_others(connection());
        same(false, $grant->release(), "$name: after a lost connection");
    }
}

/** The server would renew the other key as long as the program's connection is open. */
function test_a_session_that_lost_one_key_is_released_when_it_is_dropped(): void
{
    $grant = (new Locks($redis = connection()))->lock(['a', 'b'], session: true)->acquire();
    call('DEL', 'a');
    same([false, true], [$grant->extend(60.0), $grant->isLost()], 'extended, lost');
    unset($grant);
    same([null, true], [call('LOCK.INFO', 'b'), $redis->isConnected()], 'the other key');
}

function test_a_session_whose_release_never_arrives_ends_with_its_connection(): void
{
    $proxy = proxy(function (string $words, $server): string {
        return str_contains($words, 'LOCK.RELEASE') ? (string) usleep(1_000_000) : replied($words, $server);
    });
    $locks = new Locks(maker_of(port(), $proxy), commandTimeout: 0.4);
    $grant = $locks->lock('k', session: true, lease: 60.0)->acquire();
    same(Unavailable::class, thrown($grant->release(...))::class, 'thrown');
    until('it is released', fn () => call('LOCK.INFO', 'k') === null);
}

function test_a_session_ends_with_an_extension_that_gets_no_reply(): void
{
    $heard = new Heard();
    $grant = locks(commandTimeout: 0.4, observer: $heard)->lock('k', session: true, lease: 60.0)->acquire();
    same(Unavailable::class, stopped(fn () => thrown(fn () => $grant->extend(60.0)))::class, 'thrown');
    same([true, false, ['granted', 'lost']], [$grant->isLost(), $grant->extend(60.0), $heard->lines], 'lost, extended, heard');
    until('it is released', fn () => call('LOCK.INFO', 'k') === null);
    same(false, $grant->release(), 'released');
}

function test_a_failed_release_is_repeated_with_a_later_call(): void
{
    $locks = locks(commandTimeout: 0.3);
    foreach (['a', 'b'] as $key) {
        $grant = $locks->lock($key)->acquire();
        call('REPLICAOF', '127.0.0.1', '1');
        same(Unavailable::class, thrown($grant->release(...))::class, 'thrown');
        same(NotHeld::class, thrown($grant->release(...))::class, 'released again');
        call('REPLICAOF', 'NO', 'ONE');
    }
    until('both are released', function () use ($locks): bool {
        $locks->lock('other')->isLocked();
        return call('LOCK.INFO', 'a') === null && call('LOCK.INFO', 'b') === null;
    });
}

function test_a_release_that_fails_in_the_handler_of_a_signal_is_repeated_too(): void
{
    $locks = locks(commandTimeout: 0.95);
    [$first, $second] = [$locks->lock('a')->acquire(), $locks->lock('b')->acquire()];
    pcntl_signal(SIGALRM, fn () => thrown($second->release(...)));
    pcntl_async_signals(true);
    try {
        // It comes while the first release is repeated for the last time.
        call('REPLICAOF', HOST, 1);
        pcntl_alarm(1);
        thrown($first->release(...));
    } finally {
        pcntl_async_signals(false);
        call('REPLICAOF', 'NO', 'ONE');
    }
    usleep(1_100_000);
    $locks->lock('k')->isLocked();
    same([null, null], [call('LOCK.INFO', 'a'), call('LOCK.INFO', 'b')], 'the locks');
}

function test_an_exception_of_the_function_that_makes_the_client_stays_as_it_is(): void
{
    $own = new RuntimeException('DNS has no such name');
    same($own, thrown((new Locks(fn () => throw $own))->lock('k')->acquire(...)), 'thrown');
}

function test_an_outage_is_reported_once_until_the_server_replies(): void
{
    $heard = new Heard();
    $lock = locks(observer: $heard)->lock('k');
    foreach ([1, 2] as $outages) {
        call('REPLICAOF', '127.0.0.1', '1');
        $child = in_child(fn () => usleep(600_000) ?? call('REPLICAOF', 'NO', 'ONE'));
        same(true, $lock->acquire(INF)->release(), 'granted');
        ended($child);
        same($outages, count(preg_grep('/^unavailable: .*READONLY/', $heard->lines)), implode("\n", $heard->lines));
    }
}

function test_a_loss_is_told_once_by_the_call_that_finds_it(): void
{
    $heard = new Heard();
    $grant = locks(observer: $heard)->lock('k', lease: 0.6, margin: 0.3)->acquire();
    until('it is lost', fn () => $grant->isLost());
    same([true, 0.0], [call('LOCK.INFO', 'k') !== null, $grant->left()], 'the server has it for the margin, left');
    same([false, false, ['granted', 'lost']], [$grant->extend(5.0), $grant->release(), $heard->lines], 'extended, released, heard');
    $lock = locks()->lock('gone');
    same(LockLost::class, thrown(fn () => $lock->using(fn () => call('DEL', 'gone')))::class, 'a block');
    $own = new DomainException('of the work');
    same($own, thrown(fn () => $lock->using(fn () => call('DEL', 'gone') ? throw $own : null)), 'a block that fails');
}

/** The conformance suite has the values of options. */
function test_wrong_arguments_are_refused_before_anything_is_sent(): void
{
    $grant = locks()->lock('k', lease: 5.0, margin: 2.0)->acquire();
    $locks = new Locks(fn () => throw new Exception('connected'));
    $wrong = [
        'margin must be' => fn () => $locks->lock('k', lease: 1.0, margin: 1.0),
        'lease must be' => fn () => $grant->extend(1.5),
        'token must have' => fn () => $locks->adopt('k', '', 1),
        'redis must be connected' => fn () => new Locks(new Redis()),
        "Predis's PredisCluster" => fn () => new Locks(new Predis\Client(['tcp://a', 'tcp://b'], ['cluster' => 'predis'])),
    ];
    foreach ($wrong as $text => $call) {
        $thrown = thrown($call);
        same([InvalidArgumentException::class, true], [$thrown::class, str_contains($thrown->getMessage(), $text)], "$text: $thrown");
    }
    same(TypeError::class, thrown(fn () => new Locks(new stdClass()))::class, 'another object');
    same(TypeError::class, thrown(fn () => (new Locks(fn () => new stdClass()))->lock('k')->tryAcquire())::class, 'made');
}

/** The texts without errors are in the conformance suite. */
function test_no_text_of_an_error_shows_tokens_or_passwords(): void
{
    ini_set('zend.exception_ignore_args', '0');
    with_busy_client(function (Redis $redis, Redis $other): void {
        $clients = [$redis, new Predis\Client(['host' => HOST, 'port' => port(), 'password' => 'hunter2'])];
        foreach ($clients as $client) {
            $locks = new Locks($client, commandTimeout: 0.3);
            $grant = $locks->lock('visible')->acquire();
            $errors = [
                stopped(fn () => thrown(fn () => $grant->extend(10.0))),
                thrown(fn () => serialize($grant)),
                thrown(fn () => $locks->adopt('visible', $grant->token(), 1, lease: NAN)),
            ];
            $texts = print_r($locks, true) . @var_export($locks, true);
            foreach ($errors as $error) {
                $texts .= $error . print_r($error->getTrace(), true);
            }
            $words = ['visible', $grant->token(), 'hunter2'];
            same([true, false, false], array_map(fn ($word) => str_contains($texts, $word), $words), 'in the texts');
            same(true, $grant->release(), 'released');
        }
    });
}

/** @return int the port of a cluster of one node */
function cluster(): int
{
    static $port = null;
    return $port ??= (int) order('cluster', 1)[0];
}

/** phpredis would take the late reply for that of the next command. */
function test_a_late_reply_of_a_cluster_isnt_that_of_the_next_command(): void
{
    $node = connection(cluster());
    $process = (int) $node->info('server')['process_id'];
    $locks = new Locks(new RedisCluster(null, [HOST . ':' . cluster()], 0.2, 0.2), commandTimeout: 0.6);
    $grant = $locks->lock('k')->acquire();
    posix_kill($process, SIGSTOP);
    same(Unavailable::class, thrown(fn () => $grant->owned())::class, 'thrown');
    posix_kill($process, SIGCONT);
    same([true, false, true], [$grant->extend(60.0), $locks->lock('other')->isLocked(), $grant->release()], 'the replies');
}

/** phpredis doesn't tell a failure from a redirection. */
function test_a_command_of_a_cluster_that_is_sent_again_may_still_arrive(): void
{
    $cluster = new class (null, [HOST . ':' . cluster()], 0.2, 0.2) extends RedisCluster {
        public bool $loses = false;

        #[ReturnTypeWillChange]
        public function rawCommand($node, ...$words)
        {
            $reply = parent::rawCommand($node, ...$words);
            [$isLost, $this->loses] = [$this->loses, false];
            return $isLost ? throw new RedisClusterException('lost') : $reply;
        }
    };
    $lock = (new Locks($cluster))->lock('sent again');
    $lock->isLocked();
    $cluster->loses = true;
    $grant = $lock->acquire();
    same(true, $grant->release(), 'released');
    $late = fn () => connection(cluster())->rawCommand('LOCK.ACQUIRE', 'sent again', $grant->token(), 'PX', 60000);
    same([1, false], [preg_match('/^LEFT/', thrown($late)->getMessage()), $lock->isLocked()], 'the first command, late');
    $grant = $lock->acquire();
    $cluster->loses = true;
    same(true, $grant->release(), 'the reply to a release was lost');
}

/** A worker of a queue locks new keys without an end. */
function test_the_keys_of_a_cluster_dont_fill_the_memory(): void
{
    $locks = new Locks(new RedisCluster(null, [HOST . ':' . cluster()], 1.0, 1.0));
    $after_keys = function (int $from) use ($locks): int {
        foreach (range($from, $from + 1999) as $number) {
            $locks->lock(str_repeat('k', 500) . $number)->isLocked();
        }
        return memory_get_usage();
    };
    [$first, $second] = [$after_keys(0), $after_keys(2000)];
    same(true, $second - $first < 300_000, 'less than the keys take');
}

function test_keys_that_are_numbers_are_known_as_well(): void
{
    $locks = new Locks(new RedisCluster(null, [HOST . ':' . cluster()], 1.0, 1.0));
    $looks = fn () => sscanf(connection(cluster())->info('commandstats')['cmdstat_exists'] ?? 'calls=0', 'calls=%d')[0];
    $before = $looks();
    foreach (['1', '2', '1', '2', '1', '2'] as $key) {
        $locks->lock($key)->isLocked();
    }
    same(2, $looks() - $before, 'looks for the node of a key');
}

/** A node that is asked for a moving slot replies late, and then the next one does. */
function test_a_late_reply_for_a_moving_slot_isnt_that_of_the_next_command(): void
{
    $cluster = new class (null, [HOST . ':' . cluster()], 0.2, 0.2) extends RedisCluster {
        public int $stopped;

        #[ReturnTypeWillChange]
        public function _masters()
        {
            return [...parent::_masters(), ...parent::_masters()];
        }

        #[ReturnTypeWillChange]
        public function rawCommand($node, ...$words)
        {
            if (is_string($node)) {
                throw new RedisClusterException('redirected');
            }
            [$stopped, $this->stopped] = [$this->stopped, 0];
            $stopped === 0 || posix_kill($stopped, SIGSTOP);
            try {
                return parent::rawCommand($node, ...$words);
            } finally {
                $stopped === 0 || posix_kill($stopped, SIGCONT);
            }
        }
    };
    $cluster->stopped = (int) connection(cluster())->info('server')['process_id'];
    $grant = (new Locks($cluster))->lock('moving')->acquire(5.0);
    same(true, $grant->release(), 'released');
}

/** @return int the port of a sentinel of the tests' server */
function sentinel(): int
{
    static $port = null;
    return $port ??= (int) order('sentinel', 'mymaster', port())[0];
}

function test_the_programs_of_the_readme_do_what_it_says(): void
{
    [$first, $calls, $log] = programs(README);
    $fences = array_map(function (string $said): int {
        same(1, preg_match_all('/^got it, fence (\d+)\nreleased: true\n$/', $said, $found), $said);
        return (int) $found[1][0];
    }, outputs_of_two($first));
    same(true, $fences[0] < $fences[1], 'they rise');
    $expected = <<<'SAID'
        fence: a number
        extended: true
        left: 59
        owned: true
        lost: false
        released: true
        worked
        both: true
        shared: true
        released: 2
        adopted: true
        computed
        session: true

        SAID;
    same($expected, said_by($calls), 'what the calls said');
    same("granted: [\"orders:42\"]\nwaited: not acquired\n", said_by($log), 'what the log said');
}

function test_the_clients_of_the_readme_serve(): void
{
    [, $tls, $certificate] = order('tls');
    $here = [
        '26380' => (string) sentinel(), '26379' => '1', '7001' => (string) cluster(), '7002' => (string) cluster(),
        '6390' => $tls, "'ca.crt'" => "'$certificate'", '6379' => (string) port(),
    ];
    preg_match_all('/^<!-- run -->\n```php\n(.*?)^```/ms', file_get_contents(README), $found);
    same(5, count($found[1]), 'parts');
    foreach ($found[1] as $part) {
        $start = '<?php use RedisLock\Locks;';
        foreach (['autoload.php', 'tests/predis.php'] as $file) {
            $start .= 'require ' . var_export(realpath(__DIR__ . "/../$file"), true) . ';';
        }
        $use = 'echo $locks->lock("k")->using(fn () => "served");';
        same('served', said_by($start . strtr($part, $here) . $use), $part);
    }
}

/** Each call in PHP's column of the table. */
function test_the_calls_of_the_page_of_set_nx_work(): void
{
    $lock = locks()->lock('orders:42');
    $rows = table_of('set-nx.md', 'With a client library');
    same(5, count($rows), 'calls');
    foreach ($rows as $cells) {
        $call = trim(end($cells), '`');
        // Each call after an acquire is one of that grant.
        str_contains($call, 'cquire') || $grant ??= $lock->acquire();
        eval("\$result = $call;");
        same(true, $result instanceof Grant || $result === true, $call);
        if (preg_match('/cquire|release/', $call)) {
            str_contains($call, 'release') || $grant->release();
            $grant = null;
        }
    }
    $grant->release();
}

/** From a path, and from a git repository. */
function test_composer_installs_the_package(): void
{
    $program = 'echo (new RedisLock\Locks(fn () => null))::class;';
    same([Locks::class, Locks::class], installed(README, [], $program), 'what they said');
}

run_tests($argv[1] ?? '');
