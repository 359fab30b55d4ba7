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

    /** @var non-empty-list<string> */
    public readonly array $keys;

    /**
     * @param string|non-empty-list<string> $keys
     * @throws \InvalidArgumentException
     */
    public function __construct(
        string|array $keys,
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
        $this->keys = $keys = array_values((array) $keys);
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

    /**
     * Returns the command that asks for a grant, and waits for a part of the time that is left. The last
     * one leaves no place.
     *
     * @return non-empty-list<string|int>
     */
    public function ask(Call $call, float $block, float $left, float $within): array
    {
        [$isWait, $keep] = [$block > 0.0, min($this->keep, $left + 1)];
        $permits = ['LIMIT', $this->limit, 'PERMITS', $this->permits ?? 1];
        $replicas = ['REPLICAS', $this->replicas, 'WITHIN', Clock::milliseconds($within)];
        return $this->command($isWait ? 'WAIT' : 'ACQUIRE', $call, [
            'PX', Clock::milliseconds($this->lease),
            ...($this->shared || $this->limit !== null ? ['SHARED'] : []),
            ...($this->limit === null ? [] : $permits),
            ...($this->data === null ? [] : ['DATA', $this->data]),
            ...($isWait ? ['BLOCK', Clock::milliseconds($block)] : []),
            ...($isWait && $block < $left ? ['KEEP', Clock::milliseconds($keep)] : []),
            ...($this->replicas === null ? [] : $replicas),
        ]);
    }

    /** @return non-empty-list<string|int> */
    public function extend(Call $call, float $lease): array
    {
        $tie = $this->session ? ['SESSION'] : [];
        return $this->command('EXTEND', $call, ['PX', Clock::milliseconds($lease), 'GT', ...$tie]);
    }

    /**
     * Returns the release, after which the server turns late commands of the token away for a time.
     *
     * @return non-empty-list<string|int>
     */
    public function release(Call $call, float $time = 0.0): array
    {
        $leave = ['LEAVE', Clock::milliseconds(min($time, self::LONGEST_LEAVE))];
        return $this->command('RELEASE', $call, $time > 0.0 ? $leave : []);
    }

    /**
     * Returns the command that ends the lock later, without its connection.
     *
     * @return non-empty-list<string|int>
     */
    public function releaseAfter(Call $call, float $rest): array
    {
        $untie = $this->session ? ['NOSESSION'] : [];
        return $this->command('EXTEND', $call, ['PX', Clock::milliseconds($rest), ...$untie]);
    }

    /** @return non-empty-list<string|int> */
    public function cancel(Call $call): array
    {
        return $this->command('CANCEL', $call, []);
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

    /**
     * @param list<string|int> $words behind the token
     * @return non-empty-list<string|int>
     */
    private function command(string $name, Call $call, array $words): array
    {
        $keys = $this->keys;
        return count($keys) > 1
            ? ["LOCK.M$name", count($keys), ...$keys, $call->token(), ...$words]
            : ["LOCK.$name", $keys[0], $call->token(), ...$words];
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
