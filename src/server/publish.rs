//! Publishing of messages.

use redis_lock_core::values::notification::Notification;
use redis_module::Context;

use crate::server::api;
use crate::server::calls::{self, Str};

/// Publishes a message to its channel, in a cluster to its shard channel. The server sends it to
/// its own subscribers and to the cluster bus, but not to replicas.
pub fn publish(ctx: &Context, notification: &Notification) {
    let channel = api::string(notification.channel());
    let message = api::string(notification.message());
    let (channel, message) = (Str::from(&channel), Str::from(&message));
    if api::is_clustered() {
        calls::publish_message_shard(ctx, channel, message);
    } else {
        calls::publish_message(ctx, channel, message);
    }
}
