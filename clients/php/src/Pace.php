<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * Keeps tries that fail apart: the pause is counted from the beginning of a try, so after one that took long there
 * is none.
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
