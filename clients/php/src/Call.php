<?php

declare(strict_types=1);

namespace RedisLock;

/**
 * The commands of one call of the program.
 *
 * @internal
 */
final class Call
{
    /** The number of commands that got no reply, and may still arrive. */
    public int $unanswered = 0;
    /** The number of the connection of the latest reply. */
    public ?int $connection = null;
    private readonly \SensitiveParameterValue $token;

    /** @param string $token what no text may show; empty if the call has none */
    public function __construct(#[\SensitiveParameter] string $token = '')
    {
        $this->token = new \SensitiveParameterValue($token);
    }

    public function token(): string
    {
        return $this->token->getValue();
    }
}
