<?php

// Tests of the store against Symfony's Lock component and one server.

declare(strict_types=1);

use RedisLock\LockException;
use RedisLock\Locks;
use RedisLock\Observer;
use RedisLock\Symfony\RedisLockStore;
use Symfony\Component\Config\FileLocator;
use Symfony\Component\DependencyInjection\ContainerBuilder;
use Symfony\Component\DependencyInjection\Loader\YamlFileLoader;
use Symfony\Component\Lock\Exception\InvalidTtlException;
use Symfony\Component\Lock\Exception\LockAcquiringException;
use Symfony\Component\Lock\Exception\LockConflictedException;
use Symfony\Component\Lock\Exception\LockExpiredException;
use Symfony\Component\Lock\Exception\LockReleasingException;
use Symfony\Component\Lock\Exception\LockStorageException;
use Symfony\Component\Lock\Key;
use Symfony\Component\Lock\LockFactory;
use Symfony\Component\Lock\Store\CombinedStore;
use Symfony\Component\Lock\Store\RedisStore;
use Symfony\Component\Lock\Strategy\UnanimousStrategy;

foreach (['Lock', 'DependencyInjection', 'Config', 'Yaml'] as $component) {
    require "/usr/share/php/Symfony/Component/$component/autoload.php";
}
require __DIR__ . '/../autoload.php';
require __DIR__ . '/../../tests/server.php';
require __DIR__ . '/../../tests/checks.php';

/** Returns a store with connections of its own, like that of another process. */
function store(mixed ...$options): RedisLockStore
{
    return new RedisLockStore(locks(), ...$options);
}

/** Returns a store whose calls take at most 0.4 s. */
function impatient_store(mixed ...$options): RedisLockStore
{
    return new RedisLockStore(locks(commandTimeout: 0.4), ...$options);
}

/** Returns a key that a store holds. */
function saved(RedisLockStore $store, string $resource = 'k'): Key
{
    $key = new Key($resource);
    $store->save($key);
    return $key;
}

function test_a_lock_excludes_other_keys_until_its_release(): void
{
    [$lock, $other] = [(new LockFactory(store()))->createLock('k'), (new LockFactory(store()))->createLock('k')];
    same([true, false], [$lock->acquire(), $other->acquire()], 'acquired');
    same([true, false], [$lock->isAcquired(), $other->isAcquired()], 'held');
    $lock->release();
    same([true, false], [$other->acquire(), $lock->isAcquired()], 'after the release');
}

function test_a_lock_is_released_with_its_object_unless_it_is_told_otherwise(): void
{
    $factory = new LockFactory(store());
    $lock = $factory->createLock('k');
    $lock->acquire();
    unset($lock);
    same(null, call('LOCK.INFO', 'k'), 'after its end');
    $kept = $factory->createLock('k', 300.0, false);
    $kept->acquire();
    unset($kept, $factory);
    same(true, call('LOCK.INFO', 'k') !== null, 'without auto-release');
}

function test_nothing_renews_a_lock_but_a_refresh(): void
{
    $lock = (new LockFactory(store()))->createLock('k', 3.0);
    $lock->acquire();
    $lock->refresh(60.0);
    same(true, $lock->getRemainingLifetime() > 55.0 && $lock->isAcquired(), 'refreshed');
    $lock->refresh(2.0);
    until('it is free', fn () => !$lock->isAcquired());
    same(true, $lock->isExpired(), 'the key knows it');
    same(LockConflictedException::class, thrown(fn () => $lock->refresh())::class, 'refreshed too late');
}

function test_a_key_that_is_saved_twice_is_released_once(): void
{
    $store = store();
    $key = saved($store);
    $fence = $store->fence($key);
    $store->save($key);
    same($fence, $store->fence($key), 'the fence');
    $store->delete($key);
    $store->delete($key);
    same([false, null, null], [$store->exists($key), $store->fence($key), call('LOCK.INFO', 'k')], 'after it');
}

function test_a_reader_becomes_the_writer_and_back(): void
{
    $store = store();
    [$key, $other] = [new Key('k'), new Key('k')];
    $store->saveRead($key);
    $store->saveRead($other);
    same(LockConflictedException::class, thrown(fn () => $store->save($key))::class, 'beside a reader');
    same([true, true], [$store->exists($key), $store->exists($other)], 'both still read');
    $store->delete($other);
    $store->save($key);
    same(LockConflictedException::class, thrown(fn () => $store->saveRead($other))::class, 'beside the writer');
    $store->waitAndSaveRead($key);
    $store->saveRead($other);
    same([true, true], [$store->exists($key), $store->exists($other)], 'both read again');
}

function test_waiters_stand_in_the_queue_of_the_server(): void
{
    $holder = store();
    $key = saved($holder);
    $waits = fn (string $call) => fn () => store()->$call(new Key('k'));
    $writer = in_child($waits('waitAndSave'));
    until('the writer waits', fn () => waiters('k') === 1);
    $reader = in_child($waits('waitAndSaveRead'));
    until('the reader waits', fn () => waiters('k') === 2);
    $holder->delete($key);
    ended($writer);
    same(1, waiters('k'), 'waiters after the writer was granted the lock');
    [$granted] = locks()->lock('k')->holders();
    $granted->release();
    ended($reader);
    same('shared', call('LOCK.INFO', 'k')[1], 'then the reader');
}

function test_the_lifetime_counts_from_the_grant(): void
{
    call('LOCK.ACQUIRE', 'k', 'other', 'PX', 700);
    $key = new Key('k');
    store(initialTtl: 0.5)->waitAndSave($key);
    same(true, $key->getRemainingLifetime() > 0.0 && $key->getRemainingLifetime() <= 0.5, 'the lifetime');
}

function test_the_lifetime_counts_from_the_request_of_the_grant(): void
{
    call('LOCK.ACQUIRE', 'k', 'other', 'PX', 200);
    $proxy = proxy(function (string $words, $server): string {
        $reply = replied($words, $server);
        str_contains($words, 'LOCK.WAIT') && usleep(400_000);
        return $reply;
    });
    $key = new Key('k');
    (new RedisLockStore(new Locks(maker($proxy)), initialTtl: 3.0, wait: 10.0))->waitAndSave($key);
    same(true, $key->getRemainingLifetime() > 0.0 && $key->getRemainingLifetime() < 2.61, 'the lifetime');
}

function test_a_wait_with_a_limit_ends_as_a_conflict_in_time(): void
{
    call('LOCK.ACQUIRE', 'k', 'other', 'PX', 60000);
    $lock = (new LockFactory(store(wait: 1.2)))->createLock('k');
    foreach (['acquire', 'acquireRead'] as $call) {
        [$thrown, $took] = timed(fn () => thrown(fn () => $lock->$call(true)));
        same(LockConflictedException::class, $thrown::class, $call);
        in_time(1.2, $took, $call);
    }
    same(0, waiters('k'), 'waiters');
}

function test_readers_that_would_wait_for_each_other_are_in_conflict(): void
{
    [$here, $there] = [store(), store()];
    [$key, $other] = [new Key('upgrade'), new Key('upgrade')];
    $here->saveRead($key);
    $there->saveRead($other);
    $child = in_child(fn () => store()->waitAndSave(unserialize(serialize($key))));
    until('the other reader waits to write', fn () => waiters('upgrade') === 1);
    same(LockConflictedException::class, thrown(fn () => $there->waitAndSave($other))::class, 'thrown');
    same(true, $there->exists($other), 'it still reads');
    posix_kill($child, SIGKILL);
    ended($child);
}

function test_a_wait_that_is_cancelled_is_a_conflict(): void
{
    call('LOCK.ACQUIRE', 'cancelled', 'other', 'PX', 60000);
    $child = in_child(function (): void {
        until('it waits', fn () => waiters('cancelled') === 1);
        $queue = call('LOCK.INFO', 'cancelled')[7];
        call('LOCK.CANCEL', 'cancelled', $queue[0][1]);
    });
    same(LockConflictedException::class, thrown(fn () => store()->waitAndSave(new Key('cancelled')))::class, 'thrown');
    ended($child);
}

function test_another_process_goes_on_with_a_serialized_key(): void
{
    $key = saved(store());
    $written = serialize($key);
    $answer = answer_of_child(function () use ($written): string {
        $store = store();
        $key = unserialize($written);
        $store->putOffExpiration($key, 90.0);
        return $store->exists($key) . ' ' . $store->fence($key);
    });
    same('1 ' . call('LOCK.INFO', 'k')[3][0][3], $answer, 'held there, with its fence');
    $store = store();
    $store->save($key = unserialize($written));
    same(true, $store->exists($key), 'saved again');
    $store->delete($key);
    same(null, call('LOCK.INFO', 'k'), 'released here');
    $late = unserialize($written);
    same([false, null], [$store->exists($late), $store->fence($late)], 'a copy that is late');
    same(LockConflictedException::class, thrown(fn () => $store->putOffExpiration($late, 9.0))::class, 'extended');
    $store->delete($late);
}

function test_a_key_that_another_process_refreshed_is_held_when_the_own_lease_is_over(): void
{
    foreach (['exists' => true, 'putOffExpiration' => null, 'save' => null, 'delete' => null] as $call => $expected) {
        $key = new Key('k');
        $store = store(initialTtl: 2.0);
        $store->save($key);
        $end = hrtime(true) + 2e9;
        store()->putOffExpiration(unserialize(serialize($key)), 60.0);
        until('the own lease is over', fn () => hrtime(true) > $end);
        $key->resetLifetime();
        same($expected, $store->$call(...[$key, ...($call === 'putOffExpiration' ? [60.0] : [])]), $call);
        $store->delete($key);
        same(null, call('LOCK.INFO', 'k'), "released after $call");
    }
}

function test_a_writer_that_another_process_made_a_reader_doesnt_write_beside_readers(): void
{
    $store = store();
    $key = saved($store);
    store()->saveRead(unserialize(serialize($key)));
    $reader = new Key('k');
    store()->saveRead($reader);
    same(LockConflictedException::class, thrown(fn () => $store->save($key))::class, 'thrown');
    same([true, 'shared'], [$store->exists($key), call('LOCK.INFO', 'k')[1]], 'it still reads');
    $store->saveRead($key);
    store()->delete($reader);
    $store->save($key);
    same([true, 'exclusive'], [$store->exists($key), call('LOCK.INFO', 'k')[1]], 'it writes');
}

function test_the_lock_of_a_process_that_died_is_waited_for(): void
{
    ended(in_child(fn () => saved(store(initialTtl: 1.0))));
    same(true, call('LOCK.INFO', 'k') !== null, 'it left the lock');
    same(false, (new LockFactory(store()))->createLock('k')->acquire(), 'a try');
    same(true, (new LockFactory(store()))->createLock('k')->acquire(true), 'a wait');
}

function test_a_forked_process_holds_nothing(): void
{
    $store = store();
    $key = saved($store);
    $lock = (new LockFactory($store))->createLock('other');
    $lock->acquire();
    $answer = answer_of_child(function () use ($store, $key, &$lock): string {
        unset($lock);
        $store->delete($key);
        $thrown = [
            thrown(fn () => $store->save($key)),
            thrown(fn () => $store->putOffExpiration($key, 9.0)),
        ];
        return json_encode([$store->exists($key), $store->fence($key), ...array_map(get_class(...), $thrown)]);
    });
    same([false, null, LockConflictedException::class, LockConflictedException::class], json_decode($answer), 'there');
    same([true, true], [$store->exists($key), $lock->isAcquired()], 'here');
    $store->delete($key);
    same(null, call('LOCK.INFO', 'k'), 'released here');
    $free = new Key('free');
    ended(in_child(fn () => $store->save($free)));
    same(LockConflictedException::class, thrown(fn () => $store->save($free))::class, 'acquired there first');
}

function test_a_command_that_comes_after_the_release_is_turned_away(): void
{
    foreach (['k' => false, 'serialized' => true] as $name => $isSerialized) {
        $store = new RedisLockStore(new Locks(maker(proxy_that_loses_a_reply('LOCK.ACQUIRE'))));
        $key = saved($store, $name);
        $token = call('LOCK.INFO', $name)[3][0][1];
        $isSerialized ? store()->delete(unserialize(serialize($key))) : $store->delete($key);
        $late = thrown(fn () => call('LOCK.ACQUIRE', $name, $token, 'PX', 60000));
        same([1, null], [preg_match('/^LEFT/', $late->getMessage()), call('LOCK.INFO', $name)], $name);
    }
}

function test_a_copy_of_a_key_is_saved_again_after_its_release(): void
{
    $key = saved(store());
    $copy = serialize($key);
    store()->delete(unserialize($copy));
    $store = store();
    $store->save($key = unserialize($copy));
    same(true, $store->exists($key), 'it is held');
}

function test_a_server_that_stands_still_is_an_outage_in_time(): void
{
    $store = impatient_store();
    $key = saved($store);
    $calls = [
        'save' => fn () => $store->save(new Key('o')),
        'saveRead' => fn () => $store->saveRead(new Key('o')),
        'waitAndSave' => fn () => $store->waitAndSave(new Key('o')),
        'waitAndSaveRead' => fn () => $store->waitAndSaveRead(new Key('o')),
        'save again' => fn () => $store->save($key),
        'putOffExpiration' => fn () => $store->putOffExpiration($key, 60.0),
        'exists' => fn () => $store->exists($key),
        'a serialized key' => fn () => $store->exists(unserialize(serialize($key))),
    ];
    stopped(function () use ($calls): void {
        foreach ($calls as $name => $call) {
            [$thrown, $took] = timed(fn () => thrown($call));
            same([LockStorageException::class, 1], [$thrown::class, preg_match('/no answer/', $thrown->getMessage())], $name);
            in_time(0.4, $took, $name);
        }
    });
    until('it left no grant', fn () => call('LOCK.INFO', 'o') === null);
    same(true, $store->exists($key), 'what was held is held');
    stopped(fn () => in_time(0.4, timed(fn () => thrown(fn () => $store->delete($key)))[1], 'delete'));
    until('it is released', fn () => call('LOCK.INFO', 'k') === null);
    same(false, $store->exists($key), 'the store knows it');
    $store->save($key);
    same(true, $store->exists($key), 'saved anew');
}

function test_symfonys_lock_tells_an_outage_from_a_conflict(): void
{
    $held = (new LockFactory(impatient_store()))->createLock('held');
    $held->acquire();
    $lock = (new LockFactory(impatient_store(wait: 0.3)))->createLock('k');
    stopped(function () use ($held, $lock): void {
        foreach (['a try' => [0.4, false], 'a wait with a limit' => [0.3, true]] as $name => [$limit, $isBlocking]) {
            [$thrown, $took] = timed(fn () => thrown(fn () => $lock->acquire($isBlocking)));
            same([LockAcquiringException::class, LockStorageException::class], [$thrown::class, $thrown->getPrevious()::class], $name);
            in_time($limit, $took, $name);
        }
        same(LockReleasingException::class, thrown(fn () => $held->release())::class, 'released');
    });
    until('it is released', fn () => call('LOCK.INFO', 'held') === null);
}

function test_a_wait_without_a_limit_outlives_an_outage(): void
{
    call('LOCK.ACQUIRE', 'k', 'other', 'PX', 60000);
    $observer = new class extends Observer {
        public function unavailable(LockException $error): void
        {
            signal_server(SIGCONT);
        }
    };
    $store = new RedisLockStore(locks(commandTimeout: 0.4, observer: $observer));
    $child = in_child(function (): void {
        until('it waits', fn () => waiters('k') === 1);
        signal_server(SIGSTOP);
        // Replied to once the observer has heard of the outage.
        locks(commandTimeout: 30.0)->lock('k')->holders()[0]->release();
    });
    $key = new Key('k');
    [, $took] = timed(fn () => $store->waitAndSave($key));
    ended($child);
    same([true, true], [$store->exists($key), $took > 2.0], "held after $took s");
}

function test_a_server_that_is_gone_is_an_outage(): void
{
    $gone = new RedisLockStore(new Locks(maker(free_port())));
    [$thrown, $took] = timed(fn () => thrown(fn () => $gone->save(new Key('k'))));
    same([LockStorageException::class, 1], [$thrown::class, preg_match('/refused/', $thrown->getMessage())], "$thrown");
    in_time(1.0, $took, 'refused');
    call('SET', 'string', 'x');
    same(LockStorageException::class, thrown(fn () => store()->save(new Key('string')))::class, 'another type');
}

function test_a_lost_lock_has_no_fence(): void
{
    $store = store(initialTtl: 2.0);
    $key = saved($store);
    same(true, $store->fence($key) > 0, 'held');
    until('the lease is over', fn () => call('LOCK.INFO', 'k') === null);
    same(null, $store->fence($key), 'its fence');
}

function test_a_failed_change_of_the_mode_leaves_no_lock_behind(): void
{
    $store = impatient_store();
    $key = new Key('k');
    $store->saveRead($key);
    same(LockStorageException::class, stopped(fn () => thrown(fn () => $store->save($key)))::class, 'thrown');
    same([false, false], [$key->hasState(RedisLockStore::class), $store->exists($key)], 'the store knows it');
    until('the server knows it', fn () => call('LOCK.INFO', 'k') === null);
}

/** The first try to make up for the release is lost. */
function test_a_key_is_saved_anew_after_a_failed_release_whose_command_may_come_late(): void
{
    foreach (['save', 'saveRead', 'exists'] as $call) {
        $maker = maker(proxy_that_loses_a_command('LEAVE'));
        $store = new RedisLockStore(new Locks($maker, commandTimeout: 0.7));
        $key = saved($store);
        $token = $key->getState(RedisLockStore::class)[0];
        call('REPLICAOF', '127.0.0.1', '1');
        same(LockStorageException::class, thrown(fn () => $store->delete($key))::class, "$call: thrown");
        call('REPLICAOF', 'NO', 'ONE');
        $store->$call($key);
        $store->save($key);
        call('LOCK.RELEASE', 'k', $token);
        same([true, false], [$store->exists($key), $token === $key->getState(RedisLockStore::class)[0]], "$call: held, by the same token");
        $store->delete($key);
        same(null, call('LOCK.INFO', 'k'), "$call: released");
    }
}

function test_a_signal_ends_a_wait_and_leaves_nothing(): void
{
    call('LOCK.ACQUIRE', 'k', 'other', 'PX', 60000);
    $store = store();
    $key = new Key('k');
    pcntl_async_signals(true);
    pcntl_signal(SIGALRM, fn () => throw new RuntimeException('stop'));
    pcntl_alarm(1);
    same('stop', thrown(fn () => $store->waitAndSave($key))->getMessage(), 'thrown');
    pcntl_async_signals(false);
    same([0, false], [waiters('k'), $store->exists($key)], 'waiters, held');
}

function test_wrong_times_are_refused_before_anything_is_sent(): void
{
    $store = store();
    $key = saved($store);
    stopped(function () use ($store, $key): void {
        foreach ([0.0, -1.0, NAN, INF, -INF, 1e300] as $ttl) {
            [$thrown, $took] = timed(fn () => thrown(fn () => $store->putOffExpiration($key, $ttl)));
            same([InvalidTtlException::class, true], [$thrown::class, $took < 0.5], "a TTL of $ttl");
            same(InvalidTtlException::class, thrown(fn () => store(initialTtl: $ttl))::class, "an initial TTL of $ttl");
        }
        foreach ([-1.0, NAN, -INF, 1e300] as $wait) {
            same(InvalidArgumentException::class, thrown(fn () => store(wait: $wait))::class, "a wait of $wait");
        }
    });
    same(true, $store->exists($key), 'the lock stays');
}

function test_a_key_whose_lifetime_is_over_is_not_saved(): void
{
    $key = new Key('k');
    $key->reduceLifetime(0.0);
    same(LockExpiredException::class, thrown(fn () => store()->waitAndSave($key))::class, 'thrown');
    same(null, call('LOCK.INFO', 'k'), 'it is free');
}

function test_a_store_of_several_stores_holds_them_all(): void
{
    $there = new RedisLockStore(new Locks(maker(null, 1)));
    $lock = (new LockFactory(new CombinedStore([store(), $there], new UnanimousStrategy())))->createLock('k');
    same([true, true], [$lock->acquire(true), $lock->isAcquired()], 'acquired');
    $other = new Key('k');
    same(LockConflictedException::class, thrown(fn () => $there->save($other))::class, 'there');
    $lock->release();
    $there->save($other);
    same([false, true], [$lock->isAcquired(), $there->exists($other)], 'released');
}

function test_symfonys_redis_store_and_this_one_never_hold_a_lock_at_once(): void
{
    $old = (new LockFactory(new RedisStore(connection())))->createLock('k');
    $new = (new LockFactory(store()))->createLock('k');
    same(true, $old->acquire(), 'the old one');
    $thrown = thrown(fn () => $new->acquire());
    same([LockAcquiringException::class, 1], [$thrown::class, preg_match('/WRONGTYPE/', $thrown->getPrevious()->getMessage())], "$thrown");
    $old->release();
    same(true, $new->acquire(), 'the new one');
    same(LockAcquiringException::class, thrown(fn () => $old->acquire())::class, 'the old one, later');
}

function readme(): string
{
    return __DIR__ . '/../README.md';
}

function test_a_first_lock_of_the_readme_is_waited_for(): void
{
    call('LOCK.ACQUIRE', 'orders:42', 'other', 'PX', 600000);
    $outputs = [started(programs(readme())[0])];
    until('the first one waits', fn () => waiters('orders:42') === 1);
    $outputs[] = started(programs(readme())[0]);
    until('the second one waits', fn () => waiters('orders:42') === 2);
    call('LOCK.RELEASE', 'orders:42', 'other');
    same(array_fill(0, 2, "got it\nreleased\n"), array_map(stream_get_contents(...), $outputs), 'what they said');
}

function test_the_fence_of_the_readme_is_a_number(): void
{
    same("fenced\n", stream_get_contents(started(programs(readme())[1])), 'what it said');
}

function test_the_programs_of_the_page_do_what_it_says(): void
{
    $programs = programs(__DIR__ . '/../../../../docs/migrate/symfony-lock.md');
    same(1, count($programs), 'programs');
    same("held\n", stream_get_contents(started($programs[0])), 'what it said');
}

function test_each_call_of_the_page_works(): void
{
    $calls = calls_of('symfony-lock.md');
    same(true, count($calls) >= 13, 'calls');
    foreach ($calls as $call) {
        call('FLUSHALL');
        [$key, $redis] = [new Key('orders:42'), connection()];
        $factory = new LockFactory(new RedisLockStore(new Locks($redis), 300.0));
        $lock = $factory->createLockFromKey($key, 30.0);
        same(true, $lock->acquire(), "held before $call");
        $result = eval("use RedisLock\\Locks; use RedisLock\\Symfony\\RedisLockStore; return $call;");
        same(true, $result !== false || str_contains($call, 'isExpired'), $call);
        str_contains($call, 'release') || $lock->release();
    }
}

function test_the_services_of_the_readme_make_a_factory(): void
{
    preg_match('/^```yaml\n(.*?)^```/ms', file_get_contents(readme()), $found);
    $folder = sys_get_temp_dir() . '/services-' . getmypid();
    mkdir($folder);
    file_put_contents("$folder/services.yaml", $found[1]);
    $container = new ContainerBuilder();
    (new YamlFileLoader($container, new FileLocator($folder)))->load('services.yaml');
    unlink("$folder/services.yaml");
    rmdir($folder);
    $container->getDefinition('lock.default.factory')->setPublic(true);
    [$_ENV['REDIS_HOST'], $_ENV['REDIS_PORT']] = [HOST, (string) port()];
    $container->compile(true);
    $lock = $container->get('lock.default.factory')->createLock('k');
    same([true, true], [$lock->acquire(), call('LOCK.INFO', 'k') !== null], 'acquired');
}

function test_composer_installs_the_package(): void
{
    $program = "require '/usr/share/php/Symfony/Component/Lock/autoload.php';"
        . " echo (new RedisLock\\Symfony\\RedisLockStore(new RedisLock\\Locks(fn () => null)))::class;";
    same(RedisLockStore::class, installed(readme(), ['symfony/lock' => '5.4.0'], $program), 'what it said');
}

run_tests($argv[1] ?? '');
