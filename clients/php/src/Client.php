<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * A client of the program, which executes one command at a time.
 *
 * @internal
 */
interface Client
{
    /** Returns what the program's client puts before each key. */
    public function prefix(): string;

    /** Returns the seconds that its next step takes if no server replies; INF if a call can say so. */
    public function patience(): float;

    /**
     * Connects to the server of a key.
     *
     * @throws ErrorReply|Unavailable
     */
    public function open(string $key, float $until): void;

    /**
     * Sends a command, and returns its reply; null for nil.
     *
     * @param non-empty-list<string> $words
     * @param Call $call counts this command already, and each one that is sent again
     * @throws ErrorReply|Unavailable|Queued
     * @throws \LogicException the program is in a transaction, so the command was not executed
     */
    public function exchange(
        string $key,
        #[\SensitiveParameter] array $words,
        Call $call,
        float $until,
    ): mixed;

    /** Closes the connection, because a late reply would be taken for that of the next command. */
    public function close(): void;

    /** Closes all connections here. They are those of the process that forked this one. */
    public function abandon(): void;

    /** Returns true if it looks for the server of a key after a close, so it needn't be made anew. */
    public function findsServers(): bool;

    /** Returns the name of the latest server for messages. */
    public function name(): string;
}
