<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * A client of the program, which executes one command at a time. Throws the exceptions of its driver,
 * or an ErrorReply.
 *
 * @internal
 */
interface Client
{
    /** Returns what the program's client puts before each key. */
    public function prefix(): string;

    /** Returns the seconds that it waits for a reply, or INF if each command may say so. */
    public function patience(): float;

    /**
     * Connects to the server of a key, for its next command.
     *
     * @throws \LogicException the program is in a transaction
     */
    public function open(string $key, float $until): void;

    /**
     * Sends a command, and returns its reply: null for nil, true if it was queued in a transaction.
     *
     * @param non-empty-list<string|int> $words
     * @param Call $call counts this command already, and each one that is sent again
     */
    public function exchange(#[\SensitiveParameter] array $words, Call $call, float $until): mixed;

    /**
     * Closes the connection, because a late reply would be taken for that of the next command. Returns
     * true if it finds the server of a key anew, so it needn't be made anew.
     */
    public function close(): bool;

    /** Returns the name of the latest server for messages. */
    public function name(): string;
}
