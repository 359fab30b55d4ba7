//! Publication of the messages of places that were granted or ended.

use redis_lock_core::decision::Publication;
use redis_module::Context;

use crate::engine::{access, recorder};
use crate::server::{api, publish};
use crate::state;

/// Publishes messages now, or after the reply if they would be written into the middle of it.
pub fn publish_all(ctx: &Context, publications: &mut Vec<Publication>) {
    if publications.is_empty() {
        return;
    }
    if api::pushes_amid_replies(ctx) {
        recorder::record(|pending| pending.publications.append(publications));
        return;
    }
    publications.iter().for_each(|one| publish_one(ctx, one));
}

/// Publishes the messages that were left for later.
pub fn publish_pending(ctx: &Context) {
    let publications = state::pending(|pending| std::mem::take(&mut pending.publications));
    publications.iter().for_each(|one| publish_one(ctx, one));
}

/// Publishes a message if its user may still publish on its channel.
fn publish_one(ctx: &Context, publication: &Publication) {
    if access::may_publish(publication) {
        publish::publish(ctx, &publication.notification);
    }
}
