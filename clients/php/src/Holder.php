<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * A holder that is known by its token: what the drop-ins have in place of a grant, because another
 * process may go on with it.
 *
 * @internal
 */
final class Holder
{
    private readonly \SensitiveParameterValue $token;

    public function __construct(
        private readonly Commands $commands,
        private readonly Options $options,
        #[\SensitiveParameter] string $token,
        public readonly int $fence,
        public readonly ?string $data = null,
        /** True if a command that asked for the lock may still arrive. */
        public readonly bool $isUnclear = true,
    ) {
        $this->token = new \SensitiveParameterValue($token);
    }

    public function token(): string
    {
        return $this->token->getValue();
    }

    /** Asks the server whether it holds the lock. */
    public function owns(): bool
    {
        return $this->ask('LOCK.CHECK') > 0;
    }

    /** Sets the lease, also to a shorter one. Returns false if the lock was lost. */
    public function setLease(float $lease): bool
    {
        Options::duration('lease', $lease);
        return $this->ask('LOCK.EXTEND', 'PX', Clock::milliseconds($lease)) === 1;
    }

    /** Returns false if the lock was lost. After an outage the release goes on with later calls. */
    public function release(): bool
    {
        $call = new Call($this->token());
        $time = $this->isUnclear ? $this->options->longestTrace : 0.0;
        $words = $this->options->release($call, $time);
        try {
            $count = $this->commands->retry(
                fn (float $end) => $this->commands->ask($words, $call, $end),
                Clock::now() + $this->commands->timeout,
            );
        } catch (\Throwable $thrown) {
            $this->leave();
            throw $thrown;
        }
        // If a reply was lost, the command before may have released the lock.
        return $count === 1 || $call->unanswered > 0;
    }

    /** Releases the lock, and has the server turn late commands of the token away. */
    public function leave(): void
    {
        $time = $this->options->longestTrace;
        $words = $this->options->release(new Call($this->token()), $time);
        $this->commands->leave($words, Clock::now() + $time);
    }

    private function ask(string $command, string|int ...$words): mixed
    {
        $call = new Call($this->token());
        $keys = $this->options->keys;
        return $this->commands->ofEachKey($keys, $call, $command, $this->token(), ...$words)[0];
    }
}
