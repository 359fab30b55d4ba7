<?php

// Tests of the cache driver against Laravel's cache and one server.

declare(strict_types=1);

use Illuminate\Cache\CacheManager;
use Illuminate\Cache\RedisStore;
use Illuminate\Config\Repository as Config;
use Illuminate\Container\Container;
use Illuminate\Contracts\Cache\LockTimeoutException;
use Illuminate\Redis\RedisManager;
use Illuminate\Support\Facades\Cache;
use Illuminate\Support\Facades\Facade;
use RedisLock\Laravel\{Lock, LockServiceProvider, LockStore};
use RedisLock\{Locks, NotAcquired, ServerError, Unavailable};

// Laravel 8 wasn't written for PHP 8.2.
error_reporting(E_ALL & ~E_DEPRECATED);
foreach (['Cache', 'Config', 'Container', 'Redis'] as $component) {
    require "/usr/share/php/Illuminate/$component/autoload.php";
}
require __DIR__ . '/../autoload.php';
require __DIR__ . '/../../tests/predis.php';
require __DIR__ . '/../../tests/server.php';
require __DIR__ . '/../../tests/checks.php';

const README = __DIR__ . '/../README.md';

/** Returns an application with this store, which is the default one. */
function application(array $store, string $client = 'phpredis', array $servers = []): Container
{
    $app = new Container();
    $server = ['host' => HOST, 'port' => port()];
    $redis = $servers + [
        'options' => ['prefix' => 'app_'],
        'default' => $server,
        'cache' => $server + ['database' => 2],
    ];
    $app['config'] = new Config([
        'cache' => ['default' => 'redis', 'prefix' => 'cache', 'stores' => ['redis' => $store]],
        'database' => ['redis' => $redis],
    ]);
    $app->singleton('redis', fn () => new RedisManager($app, $client, $redis));
    $app->singleton('cache', fn () => new CacheManager($app));
    (new LockServiceProvider($app))->register();
    return $app;
}

/** Returns a lock of another process, as it were. */
function cache_lock(mixed $seconds = 30, ?string $owner = null, mixed ...$options): Lock
{
    return new Lock(locks(...$options), 'k', $seconds, $owner);
}

function test_a_lock_excludes_others_until_its_release_by_anyone(): void
{
    [$lock, $other] = [cache_lock(), cache_lock()];
    same([true, false, false], [$lock->get(), $other->get(), $lock->get()], 'acquired');
    same([false, true, false], [$other->release(), $lock->release(), $lock->release()], 'released');
    same(true, $other->get(), 'acquired by the other one');
    $lock->forceRelease();
    $lock->forceRelease();
    same([false, null], [$other->refresh(30), $other->fence()], 'refreshed after its forced release, the fence');
    same([true, true], [$lock->get(), $lock->refresh(90)], 'acquired anew, refreshed');
    same(true, left('k') > 80.0, 'the server knows it');
}

function test_the_owner_releases_and_refreshes_in_another_process(): void
{
    $lock = cache_lock(30, 'job-7');
    $lock->get();
    $fence = $lock->fence();
    $answer = answer_of_child(function (): string {
        $store = new LockStore(new RedisManager(new Container(), 'phpredis', ['default' => ['host' => HOST, 'port' => port()]]));
        [$restored, $other] = [$store->restoreLock('k', 'job-7'), $store->restoreLock('k', 'job-8')];
        return json_encode([$other->release(), $other->refresh(), $restored->refresh(60), $restored->fence(), $restored->release()]);
    });
    same([false, false, true, $fence, true], json_decode($answer), 'there');
    same([null, false], [call('LOCK.INFO', 'k'), $lock->release()], 'released, and then here');
    same(true, $lock->get(), 'acquired anew');
}

function test_a_command_that_comes_after_the_release_is_turned_away(): void
{
    foreach ([fn (Lock $lock) => $lock->release(), fn () => cache_lock(30, 'job-7')->release()] as $release) {
        $lock = new Lock(new Locks(maker(proxy_that_loses('reply', 'LOCK.ACQUIRE'))), 'k', 30, 'job-7');
        $lock->get();
        $token = holder('k')['token'];
        $release($lock);
        turned_away('k', $token);
    }
}

function test_the_current_owner_is_known(): void
{
    $owner = (fn () => $this->getCurrentOwner());
    $isOwner = (fn () => $this->isOwnedByCurrentProcess());
    $lock = cache_lock(30, 'job-7');
    same([null, false], [$owner->call($lock), $isOwner->call($lock)], 'of a free lock');
    $lock->get();
    same(['job-7', true], [$owner->call($lock), $isOwner->call(cache_lock(30, 'job-7'))], 'held');
    $lock->release();
    call('LOCK.ACQUIRE', 'k', 'other', 'PX', 60000);
    same(['other', false], [$owner->call($lock), $lock->release()], 'held by another program');
}

function test_block_gives_up_in_time(): void
{
    call('LOCK.ACQUIRE', 'k', 'other', 'PX', 60000);
    foreach ([null, fn () => throw new Exception('not held')] as $callback) {
        [$thrown, $took] = timed(fn () => thrown(fn () => cache_lock()->block(0.6, $callback)));
        same(LockTimeoutException::class, $thrown::class, 'thrown');
        in_time(0.6, $took, 'it');
    }
    same([0, LockTimeoutException::class], [waiters('k'), thrown(fn () => cache_lock()->block('0'))::class], 'waiters, without a wait');
}

function test_block_waits_for_the_end_of_its_own_lease(): void
{
    foreach (['' => [], 'with a callback' => [fn () => call('LOCK.INFO', 'k') !== null]] as $name => $callback) {
        $lock = cache_lock(1);
        $lock->get();
        [$isHeld, $took] = timed(fn () => $lock->block(10, ...$callback));
        same([true, true], [$isHeld, $took > 0.9 && $took < 5.0], "held after $took s $name");
        same([$callback === [], null], [$lock->release(), call('LOCK.INFO', 'k')], "released $name");
    }
}

function test_a_callback_runs_while_the_lock_is_held(): void
{
    $lock = cache_lock();
    foreach (['get' => [], 'block' => [1]] as $call => $arguments) {
        $work = fn (mixed $result) => fn () => call('LOCK.INFO', 'k') === null ? 'not held' : $result;
        same(['done', null], [$lock->$call(...[...$arguments, $work('done')]), $lock->$call(...[...$arguments, $work(null)])], $call);
        same(null, call('LOCK.INFO', 'k'), 'after it');
        $failure = new NotAcquired('of the work');
        same($failure, thrown(fn () => $lock->$call(...[...$arguments, fn () => throw $failure])), "$call: what it threw");
        same(null, call('LOCK.INFO', 'k'), 'after it threw');
    }
    same(true, $lock->get(fn () => $lock->release()), 'it releases the lock itself');
    call('LOCK.ACQUIRE', 'k', 'other', 'PX', 60000);
    same(false, $lock->get(fn () => 'done'), 'held by another client');
}

function test_a_callback_may_refresh_its_lock(): void
{
    $lock = cache_lock(1);
    $work = function () use ($lock): array {
        $isRefreshed = $lock->refresh(60);
        usleep(1_200_000);
        return [$isRefreshed, left('k') > 50.0, $lock->release()];
    };
    same([true, true, true], $lock->get($work), 'refreshed, held and released');
    same(null, call('LOCK.INFO', 'k'), 'after it');
}

function test_a_callback_keeps_its_result_though_the_lock_is_lost_or_no_server_replies(): void
{
    ini_set('error_log', '/dev/null');
    $lock = cache_lock(commandTimeout: 0.4);
    same('done', $lock->get(fn () => call('DEL', 'k') === 1 ? 'done' : null), 'a loss');
    $result = $lock->get(function (): string {
        signal_server(SIGSTOP);
        return 'done';
    });
    signal_server(SIGCONT);
    ini_set('error_log', '');
    same('done', $result, 'an outage');
    until('it is released', fn () => call('LOCK.INFO', 'k') === null);
}

function test_a_lock_without_a_time_ends_after_a_day(): void
{
    $lock = cache_lock(0);
    $lock->get();
    same(24, (int) ceil(left('k') / 3600), 'hours');
    $lock->refresh(10);
    $lock->refresh();
    same(24, (int) ceil(left('k') / 3600), 'hours after the refresh');
}

function test_two_locks_with_the_same_owner_exclude_each_other(): void
{
    $lock = cache_lock(0.5, 'job-7');
    $lock->get();
    $next = cache_lock(30, 'job-7');
    same(false, $next->get(), 'acquired by another one with this name');
    same(true, $next->block(10), 'acquired when the lease is over');
    same([false, false], [$lock->release(), $lock->refresh(9)], 'released, refreshed');
    same(LockTimeoutException::class, thrown(fn () => cache_lock(30, 'job-7')->block(0.1))::class, 'the next one holds it');
}

function test_neither_the_end_of_the_object_nor_of_a_fork_releases_the_lock(): void
{
    $lock = cache_lock();
    $lock->get();
    $owner = $lock->owner();
    pcntl_waitpid($child = pcntl_fork() ?: exit(0), $status);
    unset($lock);
    same($owner, holder('k')['data'], 'the owner');
    same(true, cache_lock(0, $owner)->release(), 'released by its owner');
}

function test_a_server_that_stands_still_is_an_outage_in_time(): void
{
    $held = cache_lock(30, 'held', commandTimeout: 0.4);
    $held->get();
    $lock = new Lock(locks(commandTimeout: 0.4), 'o', 30);
    $calls = [
        'get' => fn () => $lock->get(),
        'block with a callback' => fn () => $lock->block(0.4, fn () => null),
        'refresh' => fn () => $held->refresh(60),
        'forceRelease' => fn () => $lock->forceRelease(),
        'release by the owner' => fn () => $lock->release(),
        'release' => fn () => $held->release(),
    ];
    stopped(function () use ($calls): void {
        foreach ($calls as $name => $call) {
            [$thrown, $took] = timed(fn () => thrown($call));
            same(Unavailable::class, $thrown::class, $name);
            in_time(0.4, $took, $name);
        }
    });
    until('no grant is left', fn () => call('LOCK.INFO', 'o') === null && call('LOCK.INFO', 'k') === null);
    same([false, true], [$held->release(), $held->get()], 'released again, acquired again');
}

function test_wrong_seconds_are_refused_before_anything_is_sent(): void
{
    $lock = cache_lock();
    $lock->get();
    stopped(function () use ($lock): void {
        foreach ([-1, NAN, 1e300, 'soon', []] as $wrong) {
            $calls = [fn () => cache_lock($wrong), fn () => $lock->block($wrong), fn () => $lock->refresh($wrong)];
            foreach ($calls as $call) {
                same(InvalidArgumentException::class, thrown($call)::class, var_export($wrong, true));
            }
        }
        same(InvalidArgumentException::class, thrown(fn () => cache_lock(30, str_repeat('x', 1025)))::class, 'the owner');
    });
    same(true, $lock->release(), 'the lock stays');
}

/** @return array<string, mixed> the store of the README */
function store_of_the_readme(): array
{
    preg_match("/^```php\n('redis' .*?)^```/ms", file_get_contents(README), $found);
    $stores = eval("return [$found[1]];");
    return $stores['redis'];
}

function test_the_driver_keeps_values_as_before_and_locks_beside_them(): void
{
    foreach (['phpredis', 'predis'] as $client) {
        call('FLUSHALL');
        Facade::clearResolvedInstances();
        Facade::setFacadeApplication(application(store_of_the_readme(), $client));
        Cache::put('v', 'value', 60);
        Cache::tags('t')->put('tagged', 'value', 60);
        same(['value', 'value'], [Cache::get('v'), Cache::tags('t')->get('tagged')], "$client: values");
        $lock = Cache::lock('k', 30);
        same([true, 'default'], [$lock->get(), $lock->getConnectionName()], "$client: acquired");
        same(true, call('LOCK.INFO', 'app_cache:k') !== null, "$client: with the prefixes, in the database of the connection");
        same([false, true], [Cache::tags('t')->lock('k')->get(), Cache::restoreLock('k', $lock->owner())->release()], "$client: released");
    }
}

function test_the_driver_takes_the_arguments_of_locks(): void
{
    $locks = ['redis' => maker(null, 3), 'commandTimeout' => 2.0];
    $app = application(store_of_the_readme() + ['locks' => $locks]);
    $lock = $app['cache']->lock('k', 30);
    same([true, []], [$lock->get(), $app['redis']->connections() ?? []], 'acquired, and no connection of Laravel');
    $redis = connection();
    $redis->select(3);
    same(true, (bool) $redis->exists('cache:k'), 'it is there');
    stopped(fn () => in_time(2.0, timed(fn () => thrown(fn () => $lock->release()))[1], 'the timeout'));
    $wrong = application(store_of_the_readme() + ['locks' => ['commandTimeout' => -1.0]]);
    same(InvalidArgumentException::class, thrown(fn () => $wrong['cache']->lock('k'))::class, 'a wrong one');
}

function test_laravels_redis_lock_and_this_one_never_hold_a_lock_at_once(): void
{
    $server = ['host' => HOST, 'port' => port()];
    $configurations = [
        'phpredis' => ['phpredis', []],
        'Predis' => ['predis', []],
        'a prefix of the connection' => ['predis', ['default' => $server + ['prefix' => 'own_']]],
        'a prefix in its options' => ['phpredis', ['default' => $server + ['options' => ['prefix' => 'own_']]]],
        'no prefix' => ['phpredis', ['options' => []]],
    ];
    foreach ($configurations as $what => [$client, $servers]) {
        $app = application(store_of_the_readme(), $client, $servers);
        [$old, $new] = [(new RedisStore($app['redis'], 'cache'))->lock('k', 30), $app['cache']->lock('k', 30)];
        same(true, $old->get(), "$what: the old one");
        $thrown = thrown(fn () => $new->get());
        same([ServerError::class, 1], [$thrown::class, preg_match('/^WRONGTYPE/', $thrown->getMessage())], "$what: $thrown");
        $old->release();
        same([true, false, true], [$new->get(), $old->get(), $new->release()], "$what: the new one, and then the old one");
    }
}

function test_the_programs_of_the_readme_and_the_page_do_what_they_say(): void
{
    same(array_fill(0, 2, "got it\nreleased\n"), outputs_of_two(programs(README)[0]), 'what they said');
    $page = programs(__DIR__ . '/../../../../docs/migrate/laravel.md');
    $said = array_map(said_by(...), $page);
    same(["held\nowner: true\nrestored: true\n"], $said, 'the page');
}

function test_each_call_of_the_page_works(): void
{
    Facade::clearResolvedInstances();
    Facade::setFacadeApplication(application(store_of_the_readme()));
    $calls = calls_of('laravel.md');
    same(true, count($calls) >= 15, 'calls');
    $callback = fn () => 'done';
    foreach ($calls as $call) {
        call('FLUSHALL');
        $lock = Cache::lock('orders:42', 30);
        $owner = $lock->owner();
        if (preg_match('/^\$lock->(is\w+)/', $call, $found) && !is_callable([$lock, $found[1]])) {
            // A method of later versions of Laravel.
            continue;
        }
        if (!preg_match('/get|block/', $call)) {
            same(true, $lock->get(), "held before $call");
        }
        same(true, eval("use Illuminate\\Support\\Facades\\Cache; return $call;") !== false, $call);
    }
}

function test_composer_installs_the_package(): void
{
    $stubs = ['illuminate/cache' => '8.83.26', 'illuminate/redis' => '8.83.26', 'illuminate/support' => '8.83.26'];
    $program = "require '/usr/share/php/Illuminate/Cache/autoload.php';"
        . " echo (new RedisLock\\Laravel\\Lock(new RedisLock\\Locks(fn () => null), 'k', 30))::class;";
    same([Lock::class], installed(README, $stubs, $program), 'what it said');
    $package = json_decode(file_get_contents(__DIR__ . '/../composer.json'), true);
    same([LockServiceProvider::class], $package['extra']['laravel']['providers'], 'what Laravel finds');
}

run_tests($argv[1] ?? '');
