//! Publishing of messages.

use redis_lock_core::values::notification::Notification;
use redis_module::Context;

use crate::server::api::{self, server};

/// Publishes a message to its channel, in a cluster to its shard channel. The server sends it to
/// its own subscribers and to the cluster bus, but not to replicas.
pub fn publish(ctx: &Context, notification: &Notification) {
    let channel = api::string(notification.channel());
    let message = api::string(notification.message());
    let (ctx, channel, message) = (ctx.ctx, channel.inner, message.inner);
    if api::is_clustered() {
        server!(RedisModule_PublishMessageShard(ctx, channel, message));
    } else {
        server!(RedisModule_PublishMessage(ctx, channel, message));
    }
}
