<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * Pauses between the tries of one call. A pause counts from the start of a try, so a try that took
 * long has no pause after it.
 *
 * @internal
 */
final class Retries
{
    private const FIRST = 0.05;
    private const LONGEST = 1.0;

    private float $pause = self::FIRST;
    private bool $mayHaveRun = false;

    /** Sleeps until the next try. Throws the failure if it is no outage, or the time is over. */
    public function pause(Unfinished $unfinished, float $began, float $until): void
    {
        $unfinished->mayHaveRun = $this->mayHaveRun = $this->mayHaveRun || $unfinished->mayHaveRun;
        if (!$unfinished->isOutage()) {
            throw $unfinished;
        }
        try {
            $this->sleep($began, $until);
        } catch (\Throwable $thrown) {
            throw new Unfinished($thrown, $unfinished->connections, $this->mayHaveRun);
        }
        if (Clock::now() >= $until) {
            throw $unfinished;
        }
    }

    private function sleep(float $began, float $until): void
    {
        $now = Clock::now();
        $again = min($began + $this->pause, $until);
        $this->pause = $again > $now ? min(2 * $this->pause, self::LONGEST) : self::FIRST;
        while (($left = $again - Clock::now()) > 0) {
            // A signal interrupts the sleep. Short, because one may come just before it.
            usleep((int) ceil(1e6 * min($left, Signals::PAUSE)));
            Signals::handle();
        }
    }
}
