//! A request that may wait, and the start of its wait.

use crate::decision::{Caller, Enqueued};
use crate::state::queue::Position;
use crate::values::name::Names;
use crate::values::notification::Notification;
use crate::values::request::{Replicas, Request};

/// The kind of wait for a request that cannot be granted yet.
#[derive(Clone, Copy)]
pub(super) enum WaitKind<'a> {
    /// With its connection, for `block_ms`; 0: no limit. If the connection is lost, the position is
    /// kept for `keep_ms`.
    Block { block_ms: u64, keep_ms: Option<u64> },
    /// In a place that is kept for `keep_ms`. The notification is published when the place has
    /// ended.
    Place {
        keep_ms: u64,
        notification: Option<&'a Notification>,
    },
}

/// A request that waits if it cannot be granted yet.
#[derive(Clone, Copy)]
pub(super) struct WaitRequest<'a> {
    pub(super) names: &'a Names,
    pub(super) request: &'a Request,
    pub(super) kind: WaitKind<'a>,
    pub(super) replicas: Option<Replicas>,
    pub(super) caller: Caller,
}

/// The start of a request that may wait.
pub(super) enum WaitStart {
    /// The request was granted at once, with this fence.
    Granted(u64),
    /// The token waits at this position.
    Queued(Enqueued, Position),
}
