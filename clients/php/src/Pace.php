<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * Pauses between failed tries. A pause counts from the start of a try, so a try that took long has
 * no pause after it.
 *
 * @internal
 */
final class Pace
{
    private const FIRST = 0.05;
    private const LONGEST = 1.0;

    private float $pause = self::FIRST;

    public function sleep(float $began, float $until): void
    {
        $now = Clock::now();
        $again = $began + $this->pause;
        $this->pause = $again > $now ? min(2 * $this->pause, self::LONGEST) : self::FIRST;
        usleep((int) (1e6 * max(0.0, min($again, $until) - $now)));
    }
}
