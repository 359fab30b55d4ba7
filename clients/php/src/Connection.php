<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * A connection to one server. It speaks RESP2 on a stream of PHP, because neither phpredis nor
 * Predis can interrupt a read, keep the connection after a read timed out, or send without reading.
 *
 * @internal
 */
final class Connection
{
    /** At least a whole record of TLS, so that no decrypted bytes are left where select can't see them. */
    private const CHUNK = 16384;

    /** @var resource */
    private $stream;
    private string $unsent = '';
    private string $unread = '';
    /** Replies that were not read yet. */
    private int $expected = 0;

    /** Connects and logs in. Commands go after the login, because a server without passwords executes them. */
    public function __construct(public readonly Server $server, float $until)
    {
        $context = stream_context_create([
            'socket' => ['tcp_nodelay' => true],
            'ssl' => ($server->ssl ?? []) + ['peer_name' => $server->host],
        ]);
        // Not blocking, because PHP doesn't handle signals in a connect that blocks.
        $flags = STREAM_CLIENT_CONNECT | STREAM_CLIENT_ASYNC_CONNECT;
        $this->stream = $this->attempt(
            fn () => stream_socket_client($server->address(), $code, $why, 1.0, $flags, $context),
        );
        stream_set_blocking($this->stream, false);
        stream_set_read_buffer($this->stream, 0);
        if (!$this->waits(true, $until)) {
            throw new Outage("no connection to $server");
        }
        if ($server->ssl !== null) {
            $this->encrypt($until);
        }
        $login = $server->login();
        $this->send($login, $until);
        while ($this->expected > 0) {
            $reply = $this->receive($until);
            if ($reply instanceof ErrorReply) {
                throw $reply->exception($server);
            }
        }
    }

    /**
     * Sends commands without waiting for their replies.
     *
     * @param list<list<string|int>> $commands
     */
    public function send(#[\SensitiveParameter] array $commands, float $until): void
    {
        foreach ($commands as $words) {
            $this->unsent .= '*' . count($words) . "\r\n";
            foreach ($words as $word) {
                $this->unsent .= '$' . strlen((string) $word) . "\r\n$word\r\n";
            }
        }
        $this->expected += count($commands);
        while ($this->unsent !== '') {
            $sent = $this->attempt(fn () => fwrite($this->stream, $this->unsent));
            $this->unsent = substr($this->unsent, $sent);
            if ($this->unsent !== '' && !$this->waits(true, $until)) {
                throw $this->silence();
            }
        }
    }

    /** Returns the next reply. */
    public function receive(float $until): mixed
    {
        if (!$this->answers($until)) {
            throw $this->silence();
        }
        [$reply, $next] = $this->reply(0);
        $this->unread = substr($this->unread, $next);
        $this->expected--;
        return $reply;
    }

    /** Returns true as soon as there is a reply, or false if the time is over. */
    public function answers(float $until): bool
    {
        while ($this->reply(0) === null) {
            if (!$this->waits(false, $until)) {
                return false;
            }
            $chunk = $this->attempt(fn () => fread($this->stream, self::CHUNK));
            if ($chunk === '' && feof($this->stream)) {
                throw new Outage("$this->server closed the connection");
            }
            $this->unread .= $chunk;
        }
        return true;
    }

    /** Returns true if a reply was read already. */
    public function hasReply(): bool
    {
        return $this->reply(0) !== null;
    }

    /** Reads and drops all replies to what was sent. */
    public function drain(float $until): void
    {
        while ($this->expected > 0) {
            $this->receive($until);
        }
    }

    /** Returns true if the connection is open, and the server owes it nothing. */
    public function isReady(): bool
    {
        if ($this->expected > 0 || $this->unread !== '') {
            return false;
        }
        $read = [$this->stream];
        $none = null;
        return self::quietly(fn () => stream_select($read, $none, $none, 0)) === 0;
    }

    /**
     * Sends commands behind those without a reply, and closes the connection. The server executes
     * them when it goes on, because they are in its socket. Returns false if they can't be sent.
     *
     * @param list<list<string|int>> $commands
     */
    public function abandon(#[\SensitiveParameter] array $commands): bool
    {
        try {
            $this->send($commands, Clock::now());
            return true;
        } catch (Outage) {
            return false;
        } finally {
            fclose($this->stream);
        }
    }

    private function encrypt(float $until): void
    {
        $method = $this->server->ssl['crypto_method'] ?? STREAM_CRYPTO_METHOD_TLS_CLIENT;
        for (;;) {
            $done = $this->attempt(fn () => stream_socket_enable_crypto($this->stream, true, $method));
            if ($done === true) {
                return;
            }
            if (!$this->waits(false, $until)) {
                throw new Outage("no TLS handshake with {$this->server}");
            }
        }
    }

    /** Waits until the stream can be written or read. Returns false if the time is over. */
    private function waits(bool $write, float $until): bool
    {
        for (;;) {
            Signals::handle();
            $left = $until - Clock::now();
            $pause = (int) (1e6 * max(0.0, min($left, Signals::PAUSE)));
            [$read, $written, $none] = [$write ? null : [$this->stream], $write ? [$this->stream] : null, null];
            if (self::quietly(fn () => stream_select($read, $written, $none, 0, $pause)) > 0) {
                return true;
            }
            if ($left <= 0) {
                return false;
            }
        }
    }

    private function silence(): Outage
    {
        return new Outage("no answer from {$this->server}");
    }

    /**
     * Runs a function of PHP, whose warning becomes the cause of an outage.
     *
     * @template T
     * @param \Closure(): (T|false) $work
     * @return T
     */
    private function attempt(#[\SensitiveParameter] \Closure $work): mixed
    {
        $result = self::quietly($work, $warning);
        if ($result !== false) {
            return $result;
        }
        // Warnings are like "fwrite(): Send of 30 bytes failed with errno=111 Connection refused".
        $cause = 'connection lost';
        foreach (['/errno=\d+ (.*)/', '/routines::(.*)/', '/getaddrinfo for .* failed: (.*)\)/', '/\(([^()]*)\)$/'] as $pattern) {
            if (preg_match($pattern, $warning ?? '', $found)) {
                $cause = $found[1];
                break;
            }
        }
        throw new Outage("$this->server: " . lcfirst($cause));
    }

    /**
     * Runs a function of PHP without the program's error handler, which may throw.
     *
     * @template T
     * @param \Closure(): T $work
     * @return T
     */
    private static function quietly(#[\SensitiveParameter] \Closure $work, ?string &$warning = null): mixed
    {
        set_error_handler(function (int $level, string $message) use (&$warning): bool {
            $warning = $message;
            return true;
        });
        try {
            return $work();
        } finally {
            restore_error_handler();
        }
    }

    /** @return ?array{mixed, int} the reply at a position, and the position behind it */
    private function reply(int $at): ?array
    {
        $end = strpos($this->unread, "\r\n", $at);
        if ($end === false) {
            return null;
        }
        $line = substr($this->unread, $at + 1, $end - $at - 1);
        return match ($this->unread[$at]) {
            '+' => [$line, $end + 2],
            '-' => [new ErrorReply($line), $end + 2],
            ':' => [(int) $line, $end + 2],
            '$' => $this->bulk((int) $line, $end + 2),
            '*' => $this->list((int) $line, $end + 2),
            default => throw new Outage("{$this->server} doesn't speak the protocol of Redis"),
        };
    }

    /** @return ?array{?string, int} */
    private function bulk(int $length, int $at): ?array
    {
        if ($length < 0) {
            return [null, $at];
        }
        $next = $at + $length + 2;
        return strlen($this->unread) < $next ? null : [substr($this->unread, $at, $length), $next];
    }

    /** @return ?array{?list<mixed>, int} */
    private function list(int $length, int $at): ?array
    {
        $list = $length < 0 ? null : [];
        for ($index = 0; $index < $length; $index++) {
            $found = $this->reply($at);
            if ($found === null) {
                return null;
            }
            [$list[], $at] = $found;
        }
        return [$list, $at];
    }
}
