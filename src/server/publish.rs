//! Messages to those who subscribe.

use redis_lock_core::values::notice::Notice;
use redis_module::Context;

use crate::server::api::{self, server};

/// Publishes a message: in a cluster to those who subscribe to the shard channel, else to the channel.
/// The server hands it to its own subscribers and to the cluster's bus; no replica is told by it.
pub fn publish(ctx: &Context, notice: &Notice) {
    let channel = api::string(notice.channel());
    let message = api::string(notice.message());
    let (ctx, channel, message) = (ctx.ctx, channel.inner, message.inner);
    if api::is_clustered() {
        server!(RedisModule_PublishMessageShard(ctx, channel, message));
    } else {
        server!(RedisModule_PublishMessage(ctx, channel, message));
    }
}
