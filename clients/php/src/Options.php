<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * Checked options of a lock.
 *
 * @internal
 */
final class Options
{
    /** Longest time in seconds that the server takes, 2^53 - 1 ms. */
    private const LONGEST = 9007199254740991 / 1000;
    private const MOST_PERMITS = 0xffffffff;

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
        public readonly bool $reentrant,
        public readonly bool $autoRelease,
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
        self::require($atLeast === 0.0 || self::isDuration($atLeast), 'atLeast must be 0 s to 2^53 - 1 ms');
        self::count('limit', $limit, self::MOST_PERMITS);
        self::count('permits', $permits, self::MOST_PERMITS);
        self::require($permits === null || $limit !== null, 'permits need a limit');
        self::require($permits <= $limit, 'permits must not be greater than limit');
        self::require(strlen($data ?? '') <= 1024, 'data must have at most 1024 bytes');
        self::count('replicas', $replicas, 1000);
    }

    /** Returns these options with changes. */
    public function with(mixed ...$changes): self
    {
        return new self(...[...get_object_vars($this), ...$changes]);
    }

    /** @return list<string|int> the words of a command that asks for the grant */
    public function words(int $holds): array
    {
        return [
            'PX', Clock::milliseconds($this->lease), 'HOLDS', $holds,
            ...($this->shared || $this->limit !== null ? ['SHARED'] : []),
            ...($this->limit === null ? [] : ['LIMIT', $this->limit]),
            ...($this->permits === null ? [] : ['PERMITS', $this->permits]),
            ...($this->data === null ? [] : ['DATA', $this->data]),
        ];
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
