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
    private ?\Throwable $cause = null;

    /** Sleeps until the next try. Throws the failure if it is no outage, or the time is over. */
    public function pause(Unfinished $unfinished, float $began, float $until): void
    {
        $this->mayHaveRun = $this->mayHaveRun || $unfinished->mayHaveRun;
        $now = Clock::now();
        $isOver = $now >= $until;
        // A try that was cut short doesn't know the cause.
        $isCut = $isOver && $unfinished->isOutage() && $now - $began < self::LONGEST;
        $reason = $isCut ? $this->cause ?? $unfinished->reason : $unfinished->reason;
        $failure = new Unfinished($reason, $unfinished->connections, $this->mayHaveRun);
        if ($isOver || !$failure->isOutage()) {
            throw $failure;
        }
        $this->cause = $reason;
        try {
            $this->sleep($began, $until);
        } catch (\Throwable $thrown) {
            throw new Unfinished($thrown, $failure->connections, $this->mayHaveRun);
        }
        if (Clock::now() >= $until) {
            throw $failure;
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
