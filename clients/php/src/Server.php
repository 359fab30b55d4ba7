<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * Address of one server, and how to log in.
 *
 * @internal
 */
final class Server
{
    private readonly \SensitiveParameterValue $password;

    /**
     * @param string $host a name, an IP address, or the path of a Unix socket
     * @param int $port 0 for a Unix socket
     * @param ?array<string, mixed> $ssl options of PHP's ssl context; null without TLS
     */
    public function __construct(
        public readonly string $host,
        public readonly int $port,
        public readonly ?array $ssl = null,
        private readonly ?string $username = null,
        #[\SensitiveParameter] ?string $password = null,
        private readonly int $database = 0,
    ) {
        $this->password = new \SensitiveParameterValue($password);
    }

    /**
     * @param string $url redis://user:password@host:port/database, rediss://... for TLS, unix:///path,
     *     or host:port
     * @param array<string, mixed> $ssl
     */
    public static function of(#[\SensitiveParameter] mixed $url, array $ssl): self
    {
        if (is_string($url) && str_starts_with($url, 'unix:///')) {
            return new self(substr($url, strlen('unix://')), 0);
        }
        $parts = is_string($url) ? parse_url(str_contains($url, '://') ? $url : "redis://$url") : false;
        $scheme = $parts['scheme'] ?? '';
        $decoded = fn (string $part) => isset($parts[$part]) ? rawurldecode($parts[$part]) : null;
        if (in_array($scheme, ['redis', 'rediss', 'tcp', 'tls'], true) && isset($parts['host'])) {
            return new self(
                trim($parts['host'], '[]'),
                $parts['port'] ?? 6379,
                in_array($scheme, ['rediss', 'tls'], true) ? $ssl : null,
                $decoded('user'),
                $decoded('pass'),
                (int) ltrim($parts['path'] ?? '', '/'),
            );
        }
        throw new \InvalidArgumentException(
            'redis must be like redis://user:password@host:6379/0, rediss://host:6379 or unix:///path',
        );
    }

    /** Returns a server with the same login at another address. */
    public function at(string $host, int $port): self
    {
        $password = $this->password->getValue();
        return new self($host, $port, $this->ssl, $this->username, $password, $this->database);
    }

    /** @return list<list<string>> the commands that a new connection begins with */
    public function login(): array
    {
        $password = $this->password->getValue();
        $user = (string) $this->username === '' ? [] : [$this->username];
        return [
            ...((string) $password === '' ? [] : [['AUTH', ...$user, $password]]),
            ...($this->database === 0 ? [] : [['SELECT', (string) $this->database]]),
        ];
    }

    /** Returns the address for PHP's streams. */
    public function address(): string
    {
        return $this->port === 0 ? "unix://$this->host" : "tcp://$this";
    }

    public function __toString(): string
    {
        $host = str_contains($this->host, ':') ? "[$this->host]" : $this->host;
        return $this->port === 0 ? $this->host : "$host:$this->port";
    }
}
