<?php

// Checks that the tests of this package and of its adapters make, and their runner.

declare(strict_types=1);

use RedisLock\Locks;

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
function timed(#[SensitiveParameter] callable $work): array
{
    $began = hrtime(true);
    return [$work(), (hrtime(true) - $began) / 1e9];
}

function thrown(#[SensitiveParameter] callable $work): Throwable
{
    try {
        $work();
    } catch (Throwable $thrown) {
        return $thrown;
    }
    throw new Exception('nothing was thrown');
}

/** Returns a function that makes a client of phpredis. */
function maker(?int $port = null, int $database = 0): Closure
{
    return function (float $seconds) use ($port, $database): Redis {
        $redis = new Redis();
        $redis->connect(HOST, $port ?? port(), $seconds, null, 0, $seconds);
        if ($database !== 0) {
            $redis->select($database);
        }
        return $redis;
    };
}

/** Returns a function that makes clients of these ports in turn, and then of the last one. */
function maker_of(int ...$ports): Closure
{
    return function (float $seconds) use (&$ports): Redis {
        return maker(count($ports) > 1 ? array_shift($ports) : $ports[0])($seconds);
    };
}

/** @return array<string, Redis|Predis\Client> a client of each kind, by its name */
function clients(): array
{
    return ['phpredis' => connection(), 'Predis' => new Predis\Client(['host' => HOST, 'port' => port()])];
}

function raw(Redis|Predis\Client $client, string ...$words): mixed
{
    return $client instanceof Redis ? $client->rawCommand(...$words) : $client->executeRaw($words);
}

function locks(mixed ...$options): Locks
{
    return new Locks(maker(), ...$options);
}

/** Runs the work while the server is stopped. */
function stopped(#[SensitiveParameter] callable $work): mixed
{
    signal_server(SIGSTOP);
    try {
        return $work();
    } finally {
        signal_server(SIGCONT);
    }
}

/** Checks that a call took its time, and at most 1.5 s more, because the machine may be busy. */
function in_time(float $expected, float $took, string $what): void
{
    same(true, $took >= $expected - 0.001 && $took < $expected + 1.5, "$what after $took s, in time");
}

function call(string|int ...$words): mixed
{
    $reply = connection()->rawCommand(...$words);
    return $reply === [] ? null : $reply;
}

/** @return array<string, mixed> fields of a flat reply */
function fields(array $words): array
{
    return array_column(array_chunk($words, 2), 1, 0);
}

function waiters(string $key): int
{
    return fields(call('LOCK.INFO', $key) ?? [])['waiters'] ?? 0;
}

/** @return array<string, mixed> what the server says of the first holder */
function holder(string $key): array
{
    return fields(fields(call('LOCK.INFO', $key))['holders'][0]);
}

/** Returns what is left of the first holder's lease, in seconds. */
function left(string $key): float
{
    return call('LOCK.CHECK', $key, holder($key)['token']) / 1000;
}

/** Checks that a late command of a token that was left is turned away. */
function turned_away(string $key, string $token): void
{
    $late = thrown(fn () => call('LOCK.ACQUIRE', $key, $token, 'PX', 60000));
    same([1, null], [preg_match('/^LEFT/', $late->getMessage()), call('LOCK.INFO', $key)], 'a late command');
}

/** Starts a proxy that ends a connection in place of this command, or of its reply, once. Returns its port. */
function proxy_that_loses(string $what, string $command): int
{
    return proxy(function (string $words, $server) use ($what, $command, &$hasLost): ?string {
        $isLost = !$hasLost && str_contains($words, $command);
        $hasLost = $hasLost || $isLost;
        $reply = $isLost && $what === 'command' ? null : replied($words, $server);
        return $isLost ? null : $reply;
    });
}

/**
 * Starts a proxy for one connection at a time, and returns its port.
 *
 * @param callable(string, resource): ?string $reply to what the client sent; null ends the connection
 */
function proxy(callable $reply): int
{
    $listener = stream_socket_server('tcp://' . HOST . ':0');
    $port = (int) substr(strrchr(stream_socket_get_name($listener, false), ':'), 1);
    if (pcntl_fork() !== 0) {
        return $port;
    }
    pcntl_alarm(30);
    while ($client = stream_socket_accept($listener, 30)) {
        $server = stream_socket_client('tcp://' . HOST . ':' . port());
        while (($words = fread($client, 65536)) !== '' && $words !== false && ($said = $reply($words, $server)) !== null) {
            fwrite($client, $said);
        }
        fclose($client);
        fclose($server);
    }
    posix_kill(posix_getpid(), SIGKILL);
    throw new LogicException('unreachable');
}

/** @param resource $server */
function replied(string $words, $server): string
{
    fwrite($server, $words);
    return fread($server, 65536);
}

/** Runs the work in a forked process, which ends without destructors, and returns its process. */
function in_child(callable $work): int
{
    $child = pcntl_fork();
    if ($child === 0) {
        try {
            $work();
        } finally {
            posix_kill(getmypid(), SIGKILL);
        }
    }
    return $GLOBALS['children'][$child] = $child;
}

/** Waits for the end of a forked process. */
function ended(int $child): void
{
    pcntl_waitpid($child, $status);
    unset($GLOBALS['children'][$child]);
}

/** Runs the work in a forked process, and returns what it returned. */
function answer_of_child(callable $work): string
{
    $file = tempnam(sys_get_temp_dir(), 'child');
    ended(in_child(fn () => file_put_contents($file, $work())));
    $answer = file_get_contents($file);
    unlink($file);
    return $answer;
}

/**
 * Installs a package with Composer in each way of its README, with empty packages in place of those that
 * a registry has.
 *
 * @param array<string, string> $stubs versions of the empty packages
 * @return list<string> what the program prints
 */
function installed(string $readme, array $stubs, string $program): array
{
    preg_match_all('/^```json\n(.*?)^```/ms', file_get_contents($readme), $found);
    [$clone, $folder] = [realpath(__DIR__ . '/../../..'), sys_get_temp_dir() . '/composer-' . getmypid()];
    $git = 'git -c user.name=t -c user.email=t@t';
    exec("mkdir -p $folder/clone/clients && cp -rL $clone/clients/php $folder/clone/clients && cd $folder/clone"
        . " && git init -q -b main && git add -A && $git commit -qm t");
    $here = ['../redis-lock/' => "$clone/", 'https://github.com/redis-lock/redis-lock' => "file://$folder/clone"];
    $repository = fn (string $name, string $version) =>
        ['type' => 'package', 'package' => ['name' => $name, 'version' => $version, 'type' => 'metapackage']];
    file_put_contents("$folder/program.php", "<?php require 'vendor/autoload.php'; $program");
    $said = array_map(function (string $json) use ($here, $stubs, $repository, $folder): string {
        $project = json_decode(strtr($json, $here), true);
        array_push($project['repositories'], ['packagist.org' => false]);
        array_push($project['repositories'], ...array_map($repository, array_keys($stubs), $stubs));
        file_put_contents("$folder/composer.json", json_encode($project));
        $install = 'COMPOSER_ALLOW_SUPERUSER=1 composer --no-interaction --quiet install';
        exec("cd $folder && rm -rf vendor composer.lock && $install 2>&1 && php program.php 2>&1", $said);
        return implode("\n", $said);
    }, $found[1]);
    exec("rm -rf $folder");
    return $said;
}

/** @return list<string> the whole programs of a document, in their order */
function programs(string $document): array
{
    preg_match_all('/^```php\n(<\?php\n.*?)^```/ms', file_get_contents($document), $found);
    $clone = var_export(realpath(__DIR__ . '/../../..'), true);
    $here = ["__DIR__ . '/../redis-lock/" => "$clone . '/", '6379' => (string) port()];
    return array_map(fn (string $program) => strtr($program, $here), $found[1]);
}

/** @return list<string> what a program prints that waits for `orders:42`, and what its second process prints */
function outputs_of_two(string $program): array
{
    call('LOCK.ACQUIRE', 'orders:42', 'other', 'PX', 600000);
    $outputs = [];
    foreach ([1, 2] as $count) {
        $outputs[] = started($program);
        until("$count wait", fn () => waiters('orders:42') === $count);
    }
    call('LOCK.RELEASE', 'orders:42', 'other');
    return array_map(stream_get_contents(...), $outputs);
}

/** @return list<list<string>> the cells of the table under a heading of a page */
function table_of(string $page, string $heading): array
{
    preg_match("/^## $heading\n\n(.*?)\n\n/ms", file_get_contents(__DIR__ . "/../../../docs/migrate/$page"), $table);
    return array_map(fn (string $row) => preg_split('/ *\| */', trim($row, '| ')), array_slice(explode("\n", $table[1]), 2));
}

/**
 * Returns the calls of the table of a page, those of a lock with their `$lock`. A call that changes is
 * in the last column.
 *
 * @return list<string>
 */
function calls_of(string $page): array
{
    $whole = fn (string $call) => preg_match('/^(\$|new |\w+::|serialize)/', $call) ? $call : "\$lock->$call";
    $calls = function (array $cells) use ($whole): array {
        [$before, , $here] = $cells;
        preg_match_all('/`([^`]+\))`/', str_contains($here, ')`') ? $here : $before, $found);
        return array_map($whole, $found[1]);
    };
    return array_merge(...array_map($calls, table_of($page, 'Call by call')));
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

/** Runs a program, and returns what it prints. */
function said_by(string $program): string
{
    return stream_get_contents(started($program));
}

/** Runs every function whose name begins with `test_` and has this part, and ends the program. */
function run_tests(string $part): never
{
    $failed = 0;
    foreach (get_defined_functions()['user'] as $name) {
        if (!str_starts_with($name, 'test_') || !str_contains($name, $part)) {
            continue;
        }
        call('FLUSHALL');
        try {
            $name();
            echo "ok      $name\n";
        } catch (Throwable $thrown) {
            $failed++;
            echo "FAILED  $name: $thrown\n";
            foreach ($GLOBALS['children'] ?? [] as $child) {
                posix_kill($child, SIGKILL);
                ended($child);
            }
        }
    }
    exit($failed === 0 ? 0 : 1);
}
