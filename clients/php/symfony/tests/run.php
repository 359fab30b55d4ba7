<?php

// Tests of the store against Symfony's Lock component and one server.

declare(strict_types=1);

use RedisLock\Locks;
use RedisLock\Symfony\RedisLockStore;
use Symfony\Component\Config\FileLocator;
use Symfony\Component\DependencyInjection\ContainerBuilder;
use Symfony\Component\DependencyInjection\Loader\YamlFileLoader;
use Symfony\Component\Lock\Exception\{
    InvalidTtlException, LockAcquiringException, LockConflictedException, LockExpiredException,
    LockStorageException,
};
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

const README = __DIR__ . '/../README.md';

/** Returns a store with connections of its own, like that of another process. */
function store(mixed ...$options): RedisLockStore
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
    foreach (['waitAndSave', 'waitAndSaveRead'] as $call) {
        [$thrown, $took] = timed(fn () => thrown(fn () => store(wait: 0.6)->$call(new Key('k'))));
        same(LockConflictedException::class, $thrown::class, $call);
        in_time(0.6, $took, $call);
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

function test_another_process_goes_on_with_a_serialized_key(): void
{
    $written = serialize(saved(store()));
    $answer = answer_of_child(function () use ($written): string {
        [$store, $key] = [store(), unserialize($written)];
        $store->putOffExpiration($key, 90.0);
        return $store->exists($key) . ' ' . $store->fence($key);
    });
    same('1 ' . holder('k')['fence'], $answer, 'held there, with its fence');
    [$store, $key, $late] = [store(), unserialize($written), unserialize($written)];
    $store->save($key);
    same(true, $store->exists($key), 'saved again');
    $store->delete($key);
    same(null, call('LOCK.INFO', 'k'), 'released here');
    same([false, null], [$store->exists($late), $store->fence($late)], 'a copy that is late');
    same(LockConflictedException::class, thrown(fn () => $store->putOffExpiration($late, 9.0))::class, 'extended');
    $store->save($late);
    same(true, $store->exists($late), 'saved anew');
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

function test_a_forked_process_holds_nothing(): void
{
    $store = store();
    $key = saved($store);
    $lock = (new LockFactory($store))->createLock('other');
    $lock->acquire();
    $answer = answer_of_child(function () use ($store, $key, &$lock): string {
        unset($lock);
        $store->delete($key);
        $thrown = [thrown(fn () => $store->save($key)), thrown(fn () => $store->putOffExpiration($key, 9.0))];
        return json_encode([$store->exists($key), $store->fence($key), ...array_map(get_class(...), $thrown)]);
    });
    same([false, null, LockConflictedException::class, LockConflictedException::class], json_decode($answer), 'there');
    same([true, true], [$store->exists($key), $lock->isAcquired()], 'here');
    $store->delete($key);
    same(null, call('LOCK.INFO', 'k'), 'released here');
}

function test_a_command_that_comes_after_the_release_is_turned_away(): void
{
    foreach (['k' => false, 'serialized' => true] as $name => $isSerialized) {
        $store = new RedisLockStore(new Locks(maker(proxy_that_loses('reply', 'LOCK.ACQUIRE'))));
        $key = saved($store, $name);
        $token = holder($name)['token'];
        $isSerialized ? store()->delete(unserialize(serialize($key))) : $store->delete($key);
        turned_away($name, $token);
    }
}

function test_a_server_that_stands_still_is_an_outage_in_time(): void
{
    $store = store();
    $key = saved($store);
    $lock = (new LockFactory($store))->createLock('l');
    $calls = [
        'save' => fn () => $store->save(new Key('o')),
        'waitAndSave' => fn () => $store->waitAndSave(new Key('o')),
        'save again' => fn () => $store->save($key),
        'putOffExpiration' => fn () => $store->putOffExpiration($key, 60.0),
        'exists' => fn () => $store->exists($key),
        'acquire' => fn () => $lock->acquire(),
        'delete' => fn () => $store->delete($key),
    ];
    stopped(function () use ($calls): void {
        foreach ($calls as $name => $call) {
            [$thrown, $took] = timed(fn () => thrown($call));
            $class = $name === 'acquire' ? LockAcquiringException::class : LockStorageException::class;
            same([$class, 1], [$thrown::class, preg_match('/127.0.0.1|Failed to acquire/', $thrown->getMessage())], "$name: $thrown");
            in_time(0.4, $took, $name);
        }
    });
    until('it left no grant', fn () => call('LOCK.INFO', 'o') === null && call('LOCK.INFO', 'k') === null);
    same(false, $store->exists($key), 'the store knows it');
    $store->save($key);
    same(true, $store->exists($key), 'saved anew');
}

function test_a_command_that_comes_after_a_failed_change_of_the_mode_is_turned_away(): void
{
    $port = proxy(function (string $words, $server): ?string {
        return str_contains($words, 'LOCK.ACQUIRE') && !str_contains($words, 'SHARED') ? null : replied($words, $server);
    });
    $store = new RedisLockStore(new Locks(maker($port), commandTimeout: 0.4));
    $key = new Key('k');
    $store->saveRead($key);
    $token = $key->getState(RedisLockStore::class)[0];
    same(LockStorageException::class, thrown(fn () => $store->save($key))::class, 'thrown');
    same([false, false], [$key->hasState(RedisLockStore::class), $store->exists($key)], 'the store knows it');
    until('the server knows it', fn () => call('LOCK.INFO', 'k') === null);
    turned_away('k', $token);
}

/** The first try to make up for the release is lost. */
function test_a_key_is_saved_anew_after_a_failed_release_whose_command_may_come_late(): void
{
    foreach (['save', 'saveRead', 'exists'] as $call) {
        $maker = maker(proxy_that_loses('command', 'LEAVE'));
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

function test_wrong_times_are_refused_before_anything_is_sent(): void
{
    $store = store();
    $key = saved($store);
    stopped(function () use ($store, $key): void {
        foreach ([0.0, -1.0, NAN, INF, -INF, 1e300] as $ttl) {
            same(InvalidTtlException::class, thrown(fn () => $store->putOffExpiration($key, $ttl))::class, "a TTL of $ttl");
            same(InvalidTtlException::class, thrown(fn () => store(initialTtl: $ttl))::class, "an initial TTL of $ttl");
        }
        same(InvalidArgumentException::class, thrown(fn () => store(wait: -1.0))::class, 'a wait');
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

function test_the_programs_of_the_readme_and_the_page_do_what_they_say(): void
{
    [$first, $fence] = programs(README);
    same(array_fill(0, 2, "got it\nreleased\n"), outputs_of_two($first), 'what they said');
    same("fenced\n", said_by($fence), 'the fence');
    $page = programs(__DIR__ . '/../../../../docs/migrate/symfony-lock.md');
    same(["held\n"], array_map(said_by(...), $page), 'the page');
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
    preg_match('/^```yaml\n(.*?)^```/ms', file_get_contents(README), $found);
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
    same([RedisLockStore::class], installed(README, ['symfony/lock' => '5.4.0'], $program), 'what it said');
}

run_tests($argv[1] ?? '');
