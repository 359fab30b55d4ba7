<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * Checked options of a lock, and the words of its commands.
 *
 * @internal
 */
final class Options
{
    /** Longest time in seconds that the server takes, 2^53 - 1 ms. */
    private const LONGEST = 9007199254740991 / 1000;
    /** Longest time of LEAVE in seconds that the server takes. */
    private const LONGEST_LEAVE = 86400.0;
    private const MOST_PERMITS = 0xffffffff;

    /** Seconds between the deadline and the end of the lease at the server. */
    public readonly float $margin;
    /** Seconds for which the server may have a place or a grant of a token that it doesn't hear of. */
    public readonly float $longestTrace;

    /** @param non-empty-list<string> $keys */
    public function __construct(
        public readonly array $keys,
        public readonly float $lease,
        public readonly float $wait,
        public readonly bool $shared,
        public readonly ?int $limit,
        public readonly ?int $permits,
        public readonly bool $session,
        public readonly float $keep,
        ?float $margin,
        public readonly float $atLeast,
        public readonly ?string $data,
        public readonly ?int $replicas,
    ) {
        self::require($keys !== [], 'keys must not be empty');
        self::require(array_filter($keys, is_string(...)) === $keys, 'keys must be strings');
        self::require(array_unique($keys) === $keys, 'keys must be different');
        self::duration('lease', $lease);
        self::limit('wait', $wait);
        self::duration('keep', $keep);
        $this->margin = $margin ?? min($lease / 10, 1.0);
        $isMargin = $this->margin >= 0.0 && $this->margin < $lease;
        self::require($isMargin, 'margin must be at least 0 s, and less than lease');
        self::require($atLeast === 0.0 || self::isDuration($atLeast), 'atLeast must be 0 s to 2^53 - 1 ms');
        self::count('limit', $limit, self::MOST_PERMITS);
        self::count('permits', $permits, self::MOST_PERMITS);
        self::require($permits === null || $limit !== null, 'permits need a limit');
        self::require($permits <= $limit, 'permits must not be greater than limit');
        self::require(strlen($data ?? '') <= 1024, 'data must have at most 1024 bytes');
        self::count('replicas', $replicas, 1000);
        $this->longestTrace = max($lease, $keep);
    }

    /** @return non-empty-list<string|int> */
    public function acquire(#[\SensitiveParameter] string $token, float $within): array
    {
        return $this->command('ACQUIRE', $token, [...$this->grant(), ...$this->replicas($within)]);
    }

    /**
     * Returns the WAIT of a part of the time that is left. The last one leaves no place.
     *
     * @return non-empty-list<string|int>
     */
    public function waitFor(
        #[\SensitiveParameter] string $token,
        float $block,
        float $left,
        float $within,
    ): array {
        $keep = $block >= $left ? [] : ['KEEP', Clock::milliseconds(min($this->keep, $left + 1))];
        $words = ['BLOCK', Clock::milliseconds($block), ...$keep, ...$this->replicas($within)];
        return $this->command('WAIT', $token, [...$this->grant(), ...$words]);
    }

    /** @return non-empty-list<string|int> */
    public function extend(#[\SensitiveParameter] string $token, float $lease): array
    {
        $tie = $this->session ? ['SESSION'] : [];
        return $this->command('EXTEND', $token, ['PX', Clock::milliseconds($lease), 'GT', ...$tie]);
    }

    /** @return non-empty-list<string|int> */
    public function release(#[\SensitiveParameter] string $token): array
    {
        return $this->command('RELEASE', $token, []);
    }

    /**
     * Returns the command that ends the lock later, without its connection.
     *
     * @return non-empty-list<string|int>
     */
    public function releaseAfter(#[\SensitiveParameter] string $token, float $rest): array
    {
        $untie = $this->session ? ['NOSESSION'] : [];
        return $this->command('EXTEND', $token, ['PX', Clock::milliseconds($rest), ...$untie]);
    }

    /**
     * Returns the release after which the server turns late commands of the token away.
     *
     * @return non-empty-list<string|int>
     */
    public function leave(#[\SensitiveParameter] string $token, float $seconds): array
    {
        $milliseconds = Clock::milliseconds(min($seconds, self::LONGEST_LEAVE));
        return $this->command('RELEASE', $token, ['LEAVE', $milliseconds]);
    }

    /** @return non-empty-list<string|int> */
    public function cancel(#[\SensitiveParameter] string $token): array
    {
        return $this->command('CANCEL', $token, []);
    }

    /** Checks a time that is greater than 0. */
    public static function duration(string $name, float $seconds): void
    {
        self::require(self::isDuration($seconds), "$name must be more than 0 s, and at most 2^53 - 1 ms");
    }

    /** Checks the time limit of a wait, which may be 0 or INF. */
    public static function limit(string $name, float $seconds): void
    {
        $isLimit = $seconds === 0.0 || $seconds === INF || self::isDuration($seconds);
        self::require($isLimit, "$name must be 0 s to 2^53 - 1 ms, or INF");
    }

    public static function token(#[\SensitiveParameter] string $token): void
    {
        self::require($token !== '' && strlen($token) <= 256, 'token must have 1 to 256 bytes');
        self::require($token !== '*', "token must not be '*'");
    }

    /** Checks the length of a lease that extend() sets. */
    public function extension(float $lease): void
    {
        self::duration('lease', $lease);
        self::require($lease > $this->margin, 'lease must be greater than margin');
    }

    /** @return non-empty-list<string|int> the words of a command that asks for the grant */
    private function grant(): array
    {
        return [
            'PX', Clock::milliseconds($this->lease),
            ...($this->shared || $this->limit !== null ? ['SHARED'] : []),
            ...($this->limit === null ? [] : ['LIMIT', $this->limit, 'PERMITS', $this->permits ?? 1]),
            ...($this->data === null ? [] : ['DATA', $this->data]),
        ];
    }

    /** @return list<string|int> */
    private function replicas(float $within): array
    {
        return $this->replicas === null
            ? []
            : ['REPLICAS', $this->replicas, 'WITHIN', Clock::milliseconds($within)];
    }

    /**
     * @param list<string|int> $words behind the token
     * @return non-empty-list<string|int>
     */
    private function command(string $name, #[\SensitiveParameter] string $token, array $words): array
    {
        $keys = $this->keys;
        return count($keys) > 1
            ? ["LOCK.M$name", count($keys), ...$keys, $token, ...$words]
            : ["LOCK.$name", $keys[0], $token, ...$words];
    }

    private static function isDuration(float $seconds): bool
    {
        return $seconds > 0.0 && $seconds <= self::LONGEST;
    }

    private static function count(string $name, ?int $count, int $most): void
    {
        self::require($count === null || ($count >= 1 && $count <= $most), "$name must be 1 to $most");
    }

    private static function require(bool $isSo, string $what): void
    {
        if (!$isSo) {
            throw new \InvalidArgumentException($what);
        }
    }
}
