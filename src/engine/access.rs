//! The rights of waiters, and of the channel of a NOTIFY. They are checked again when the waiter's
//! turn comes, because an administrator may have changed them since the wait began.

use redis_lock_core::decision::Publication;
use redis_lock_core::hints::likely;
use redis_lock_core::operation::{Action, Operation};
use redis_lock_core::state::waiter::{Waiter, WaiterKind};
use redis_lock_core::values::refusal::Refusal;
use redis_module::Context;

use crate::server::rights::{self, Caller};
use crate::state::{self, State};

/// Returns true if no rights can have changed since those of a waiter's user were last checked. The
/// user then still has them. An absent waiter has no such user.
pub fn is_unchanged(state: &State, waiter: &Waiter) -> bool {
    let is_blocked = waiter.kind.is_blocked();
    if is_blocked && likely(state.rights.borrow().have_never_changed()) {
        return true;
    }
    let version = match &waiter.kind {
        WaiterKind::Blocked { .. } => state.blocked(|blocked| {
            let client = blocked.clients.get(&waiter.waiter_id);
            client.map(|client| client.rights_version)
        }),
        WaiterKind::Place(place) => Some(place.user.rights_version),
        WaiterKind::Absent { .. } => None,
    };
    version.is_some_and(|version| state.rights.borrow().is_current(version))
}

/// Returns true if a waiter's user has the rights for its wait now. Asks the server: by the client of
/// a blocked waiter, and by the name of a place's user. An absent waiter is granted nothing.
pub fn check(ctx: &Context, waiter: &Waiter) -> bool {
    match &waiter.kind {
        WaiterKind::Blocked { .. } => check_blocked(ctx, waiter),
        WaiterKind::Place(place) => {
            rights::may_queue(&place.user, &waiter.names, &waiter.request.token)
        }
        WaiterKind::Absent { .. } => false,
    }
}

/// Checks the rights of a blocked client's user, and records their version if the user has them.
fn check_blocked(ctx: &Context, waiter: &Waiter) -> bool {
    let version = rights::version_in(ctx);
    let permitted = rights::may_wait(ctx, waiter.client_id, &waiter.names, &waiter.request.token);
    state::blocked(|blocked| {
        if let Some(blocked) = blocked
            .clients
            .get_mut(&waiter.waiter_id)
            .filter(|_| permitted)
        {
            blocked.rights_version = version;
        }
    });
    permitted
}

/// Returns an error if the caller may not publish on the channel of its NOTIFY. The server itself
/// checks only the rights to keys.
pub fn check_channel(ctx: &Context, operation: &Operation) -> Result<(), Refusal> {
    match &operation.action {
        Action::Queue {
            notification: Some(notification),
            ..
        } if !Caller::of(ctx).may_publish(notification.channel()) => {
            Err(Refusal::NoChannelPermission)
        }
        _ => Ok(()),
    }
}

/// Returns true if a place's user may still publish its message.
pub fn may_publish(
    Publication {
        notification, user, ..
    }: &Publication,
) -> bool {
    rights::is_current(user.rights_version)
        || rights::may_still_publish(user, notification.channel())
}
