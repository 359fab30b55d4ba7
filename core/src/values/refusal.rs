//! The error texts of the module.

use std::fmt;

/// The reason why a command was refused or a wait ended. A refused command changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Too few or too many words.
    Arity,
    /// Unknown, repeated or contradictory options.
    Syntax,
    /// The number of keys is no number, or exceeds the number of words that may be keys.
    Numkeys,
    /// A key that is named twice.
    DuplicateKey,
    /// A token without bytes, or of more than 256 bytes.
    TokenLength,
    /// `*` for a token that has to exist already.
    TokenStar,
    /// A lease outside 1 ms to 2^53 - 1 ms.
    Lease,
    /// A BLOCK outside 0 to 2^53 - 1 ms.
    Timeout,
    /// A KEEP outside 1 ms to 2^53 - 1 ms.
    Keep,
    /// A LIMIT outside 1 to 2^32 - 1.
    Limit,
    /// PERMITS outside 1 to the command's LIMIT.
    Permits,
    /// HOLDS outside 1 to 2^32 - 1.
    Holds,
    /// HOLDS of a RELEASE outside 0 to 2^32 - 1.
    HoldsLeft,
    /// A WAITERS count outside 0 to 2^53 - 1.
    Count,
    /// A LOCK.HOT count outside 1 to 128.
    HotCount,
    /// DATA of more than 1024 bytes.
    Data,
    /// REPLICAS outside 1 to 1000.
    Replicas,
    /// A WITHIN outside 1 ms to 2^53 - 1 ms.
    Within,
    /// A FENCE outside 1 to 2^53 - 1, or too far ahead of the clock.
    Fence,
    /// A LEAVE outside 1 ms to a day.
    Leave,
    /// A NOTIFY message of more than 1024 bytes.
    Message,
    /// A NOTIFY channel of more than 1024 bytes.
    ChannelLength,
    /// A NOTIFY channel outside the slot of the key.
    Channel,
    /// The caller's user may not publish on the NOTIFY channel.
    NoChannelPermission,
    /// REPLICAS in a context that may not block.
    ReplicasHere,
    /// The token has left one of the keys by RELEASE ... LEAVE.
    Left,
    /// The key holds another type.
    WrongType,
    /// A request of a shared holder for more permits than it has.
    PermitsRaised,
    /// Fewer replicas than REPLICAS asks for are online.
    TooFewReplicas,
    /// The grant was lost before enough replicas acknowledged it.
    GrantLost,
    /// Too few replicas acknowledged the command within its WITHIN.
    NotAcknowledged,
    /// The waiter's user no longer has the rights to the lock.
    NoPermission,
    /// The wait might never end, because another holder waits for this holder to leave.
    Deadlock,
    /// The wait would never end, because connections would wait for each other's sessions.
    SessionDeadlock,
    /// `lock.max-waiters` clients wait already.
    MaxWaiters,
    /// Nine tenths of the clients that the server admits wait already.
    MaxClients,
    /// `lock.max-tickets` waiters without a connection wait already.
    MaxTickets,
    /// A command that writes, on a replica that accepts writes.
    ReadOnly,
    /// LOCK.APPLY from a client.
    ApplyInternal,
    /// LOCK.APPLY with words that no primary writes.
    ApplyMalformed,
    /// The wait was replaced by a newer wait of the same token.
    TakenOver,
    /// The wait was cancelled by LOCK.CANCEL, or its token has left.
    Cancelled,
    /// The system's random generator gave no bits for a `*` token.
    NoRandomness,
    /// The client that called a script could not be identified.
    CallerUnknown,
    /// A session was asked for by a client without a connection, as in another module's call.
    NoConnection,
    /// A LOCK.* call by a module, from inside one of this module's own steps.
    Reentered,
    /// A panic in the command's handler. The server keeps running.
    Panicked,
}

impl Refusal {
    /// Returns the error as the client reads it, with its code first.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Arity => "ERR wrong number of arguments",
            Self::Syntax => "ERR syntax error",
            Self::Numkeys => {
                "ERR numkeys must be a number from 1 to the number of keys that follow"
            }
            Self::DuplicateKey => "ERR duplicate key",
            Self::TokenLength => "ERR token must be 1 to 256 bytes",
            Self::TokenStar => {
                "ERR '*' asks for a new token, but this command needs one that exists"
            }
            Self::Lease => "ERR invalid lease, must be 1 to 9007199254740991 ms",
            Self::Timeout => "ERR invalid timeout, must be 0 to 9007199254740991 ms",
            Self::Keep => "ERR invalid keep, must be 1 to 9007199254740991 ms",
            Self::Limit => "ERR invalid limit, must be 1 to 4294967295",
            Self::Permits => "ERR invalid permits, must be 1 to the limit",
            Self::Holds => "ERR invalid holds, must be 1 to 4294967295",
            Self::HoldsLeft => "ERR invalid holds, must be 0 to 4294967295",
            Self::Count => "ERR invalid count, must be 0 to 9007199254740991",
            Self::HotCount => "ERR invalid count, must be 1 to 128",
            Self::Data => "ERR invalid data, must be 0 to 1024 bytes",
            Self::Replicas => "ERR invalid replicas, must be 1 to 1000",
            Self::Within => "ERR invalid within, must be 1 to 9007199254740991 ms",
            Self::Fence => {
                "ERR invalid fence, must be 1 to 9007199254740991 and at most 60 s ahead of the clock"
            }
            Self::Leave => "ERR invalid leave, must be 1 to 86400000 ms",
            Self::Message => "ERR invalid message, must be 0 to 1024 bytes",
            Self::ChannelLength => "ERR channel must be 0 to 1024 bytes",
            Self::Channel => "ERR channel must be in the slot of the key",
            Self::NoChannelPermission => "NOPERM No permissions to access a channel",
            Self::ReplicasHere => "ERR REPLICAS can't be waited for here",
            Self::Left => "LEFT this token has left the lock by LOCK.RELEASE ... LEAVE",
            Self::WrongType => "WRONGTYPE Operation against a key holding the wrong kind of value",
            Self::PermitsRaised => "ERR permits can't be raised",
            Self::TooFewReplicas => "NOREPLICAS fewer replicas are online than REPLICAS asks for",
            Self::GrantLost => "NOREPLICAS the grant ended before enough replicas had acknowledged it",
            Self::NotAcknowledged => "NOREPLICAS too few replicas acknowledged the command in time",
            Self::NoPermission => "NOPERM No permissions to access a key",
            Self::Deadlock => "DEADLOCK another holder waits to upgrade this lock",
            Self::SessionDeadlock => {
                "DEADLOCK connections would wait for each other's SESSION grants"
            }
            Self::MaxWaiters => "MAXWAITERS as many clients wait as lock.max-waiters allows",
            Self::MaxClients => "MAXWAITERS as many clients wait as nine tenths of maxclients",
            Self::MaxTickets => {
                "MAXTICKETS as many wait without a connection as lock.max-tickets allows"
            }
            Self::ReadOnly => "READONLY locks are granted by the primary alone",
            Self::ApplyInternal => "ERR LOCK.APPLY is internal",
            Self::ApplyMalformed => "ERR LOCK.APPLY got a malformed effect",
            Self::TakenOver => "UNBLOCKED a newer connection with this token took over this place",
            Self::Cancelled => "UNBLOCKED this wait was given up by LOCK.CANCEL or LEAVE",
            Self::NoRandomness => "ERR the system gave no random bits for a token",
            Self::CallerUnknown => "ERR SESSION in a script: the caller could not be made out",
            Self::NoConnection => "ERR SESSION needs a connection, and a module's call has none",
            Self::Reentered => "ERR the lock module is busy with the command that led to this one",
            Self::Panicked => "ERR internal error in the lock module, see the server's log",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
