//! Publishes what places asked for whose wait is over.

use redis_lock_core::decision::Publication;
use redis_module::Context;

use crate::engine::pending;
use crate::server::{api, publish, rights};
use crate::state;

/// Publishes these now, or where that would break into a reply, as soon as that is whole.
pub fn publish_all(ctx: &Context, publications: &mut Vec<Publication>) {
    if publications.is_empty() {
        return;
    }
    if api::pushes_amid_replies(ctx) {
        pending::record(|pending| pending.publications.append(publications));
        return;
    }
    publications.iter().for_each(|one| publish_one(ctx, one));
}

/// Publishes those that were left for later.
pub fn publish_pending(ctx: &Context) {
    let publications = state::pending(|pending| std::mem::take(&mut pending.publications));
    publications.iter().for_each(|one| publish_one(ctx, one));
}

/// Publishes what its user may still publish there.
fn publish_one(ctx: &Context, Publication { notice, user, .. }: &Publication) {
    let may_publish = rights::is_current(user.rights_version)
        || rights::may_still_publish(user, notice.channel());
    if may_publish {
        publish::publish(ctx, notice);
    }
}
