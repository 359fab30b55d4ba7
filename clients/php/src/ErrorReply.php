<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * An error that a server replied.
 *
 * @internal
 */
final class ErrorReply extends \Exception
{
    /** The codes of errors after which the same command may succeed later, or at another server. */
    private const OUTAGES = '/^(LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|MOVED|ASK|OOM|MISCONF|BUSY) '
        . '|^ERR max number of clients|^UNBLOCKED .*(instance state changed|took over this place)'
        . '|^NOREPLICAS Not enough good replicas/';

    /** Returns the reply that an exception is or has in its text, unlike "AUTH failed while reconnecting". */
    public static function of(\Throwable $thrown): ?self
    {
        $pattern = '/^(`\w+` failed: )?-?([A-Z]{3,} (?!failed ).*)/s';
        $isReply = preg_match($pattern, $thrown->getMessage(), $found) === 1;
        return $thrown instanceof self ? $thrown : ($isReply ? new self($found[2]) : null);
    }

    /** Returns true if another server may not reply so. */
    public function isOfServer(): bool
    {
        return preg_match('/^(READONLY|MASTERDOWN|UNBLOCKED|ERR max) /', $this->getMessage()) === 1;
    }

    /** Returns the error for the caller. Its text never has the token. */
    public function exception(string $server, #[\SensitiveParameter] string $token): LockException
    {
        $text = $token === '' ? $this->getMessage() : str_replace($token, '<token>', $this->getMessage());
        return match (true) {
            preg_match(self::OUTAGES, $text) === 1 => new Unavailable("$server: $text"),
            str_starts_with($text, 'UNBLOCKED ') => new Cancelled($text),
            str_starts_with($text, 'DEADLOCK ') => new Deadlock($text),
            str_starts_with($text, 'NOREPLICAS ') => new NotReplicated($text),
            stripos($text, "ERR unknown command 'LOCK.") === 0 =>
                new ModuleMissing("$server: this server hasn't loaded redis-lock"),
            default => new ServerError($text),
        };
    }
}
