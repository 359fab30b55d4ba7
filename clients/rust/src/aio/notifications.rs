//! The notification of tasks whose turn has come, by messages on a channel of this program's own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::BoxFuture;
use futures_util::StreamExt;
use redis::aio::PubSubStream;
use redis::{Client, RedisResult};
use tokio::sync::{watch, Notify};
use tokio::task::JoinSet;
use tokio::time::{self, sleep_until, timeout_at};

use crate::error::Backoff;
use crate::mutex::Mutex;
use crate::owner::ANSWER_WITHIN;

#[cfg(feature = "cluster-async")]
pub(super) use cluster::ShardSubscriptions;

/// A listener for these messages.
pub(super) trait Listener: Send + Sync {
    /// Returns the channel of a task that waits for `key` until `end`, and subscribes to it first.
    /// If it can't subscribe in time, the task asks without being notified.
    fn channel<'a>(&'a self, key: &'a [u8], end: Instant) -> BoxFuture<'a, String>;
}

/// The tasks that wait.
#[derive(Default)]
pub(super) struct Waiters {
    last: AtomicU64,
    notifies: Mutex<HashMap<u64, Arc<Notify>>>,
}

/// A task that waits. Messages contain its number instead of the token, which stays secret.
pub(super) struct Waiter {
    pub(super) number: u64,
    notify: Arc<Notify>,
    waiters: Arc<Waiters>,
}

impl Waiter {
    /// Returns when asking again is worthwhile.
    pub(super) async fn told(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.waiters.notifies.lock().remove(&self.number);
    }
}

impl Waiters {
    pub(super) fn add(self: &Arc<Self>) -> Waiter {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let notify: Arc<Notify> = Arc::default();
        self.notifies.lock().insert(number, Arc::clone(&notify));
        Waiter {
            number,
            notify,
            waiters: Arc::clone(self),
        }
    }

    fn tell(&self, message: &[u8]) {
        let number = std::str::from_utf8(message).ok();
        let number: Option<u64> = number.and_then(|text| text.parse().ok());
        let notifies = self.notifies.lock();
        let notify = number.and_then(|number| notifies.get(&number));
        notify.inspect(|notify| notify.notify_one());
    }

    /// Wakes every waiter, because messages may have been missed.
    fn tell_all(&self) {
        let notifies = self.notifies.lock();
        notifies.values().for_each(|notify| notify.notify_one());
    }
}

/// Returns the time at which a task stops waiting for its subscription.
fn soon(end: Instant) -> time::Instant {
    end.min(Instant::now() + ANSWER_WITHIN).into()
}

fn random_name() -> String {
    format!("redis-lock:{:032x}", rand::random::<u128>())
}

/// One channel on a connection of its own, which opens for the first task that waits.
pub(super) struct Subscription {
    channel: String,
    is_wanted: Arc<Notify>,
    is_subscribed: watch::Receiver<bool>,
    /// The task that listens. It ends when this is dropped.
    _listening: JoinSet<()>,
}

impl Subscription {
    pub(super) fn new(client: Client, waiters: Arc<Waiters>) -> Subscription {
        let channel = random_name();
        let is_wanted: Arc<Notify> = Arc::default();
        let (subscribed, is_subscribed) = watch::channel(false);
        let mut listening = JoinSet::new();
        let (name, wanted) = (channel.clone(), Arc::clone(&is_wanted));
        listening.spawn(async move {
            wanted.notified().await;
            listen(&client, &name, &waiters, &subscribed).await;
        });
        Subscription {
            channel,
            is_wanted,
            is_subscribed,
            _listening: listening,
        }
    }
}

impl Listener for Subscription {
    fn channel<'a>(&'a self, _key: &'a [u8], end: Instant) -> BoxFuture<'a, String> {
        Box::pin(async move {
            self.is_wanted.notify_one();
            let mut is_subscribed = self.is_subscribed.clone();
            let _ = timeout_at(soon(end), is_subscribed.wait_for(|it| *it)).await;
            self.channel.clone()
        })
    }
}

async fn listen(
    client: &Client,
    channel: &str,
    waiters: &Waiters,
    is_subscribed: &watch::Sender<bool>,
) {
    let mut backoff = Backoff::new();
    loop {
        if let Ok(mut messages) = subscribe(client, channel).await {
            backoff = Backoff::new();
            is_subscribed.send_replace(true);
            waiters.tell_all();
            while let Some(message) = messages.next().await {
                waiters.tell(message.get_payload_bytes());
            }
            is_subscribed.send_replace(false);
        }
        sleep_until(backoff.next(None).into()).await;
    }
}

async fn subscribe(client: &Client, channel: &str) -> RedisResult<PubSubStream> {
    let mut connection = client.get_async_pubsub().await?;
    connection.subscribe(channel).await?;
    Ok(connection.into_on_message())
}

#[cfg(feature = "cluster-async")]
mod cluster {
    use std::collections::HashMap;
    use std::iter;
    use std::sync::Arc;
    use std::time::Instant;

    use futures_util::future::BoxFuture;
    use redis::cluster_async::ClusterConnection;
    use redis::cluster_routing::Slot;
    use redis::{PushInfo, PushKind, Value};
    use tokio::sync::mpsc::UnboundedReceiver;
    use tokio::task::JoinSet;
    use tokio::time::timeout_at;

    use super::{random_name, soon, Listener, Waiters};
    use crate::mutex::Mutex;

    /// The shard channels, one for each slot, on the connections of a cluster.
    pub(in super::super) struct ShardSubscriptions {
        connection: ClusterConnection,
        name: String,
        channels: Arc<Channels>,
        /// The task that listens. It ends when this is dropped.
        _listening: JoinSet<()>,
    }

    /// The subscribed channel of each slot.
    type Channels = Mutex<HashMap<Slot, String>>;

    impl ShardSubscriptions {
        pub(in super::super) fn new(
            connection: ClusterConnection,
            mut pushes: UnboundedReceiver<PushInfo>,
            waiters: Arc<Waiters>,
        ) -> ShardSubscriptions {
            let channels: Arc<Channels> = Arc::default();
            let subscribed = Arc::clone(&channels);
            let mut listening = JoinSet::new();
            listening.spawn(async move {
                while let Some(push) = pushes.recv().await {
                    read(&push, &waiters, &subscribed);
                }
            });
            ShardSubscriptions {
                connection,
                name: random_name(),
                channels,
                _listening: listening,
            }
        }
    }

    fn read(push: &PushInfo, waiters: &Waiters, channels: &Channels) {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::SMessage, [_, Value::BulkString(message)]) => waiters.tell(message),
            (PushKind::SSubscribe, _) => waiters.tell_all(),
            // The slot has moved.
            (PushKind::SUnsubscribe, [Value::BulkString(channel), ..]) => {
                channels.lock().remove(&Slot::for_key(channel));
                waiters.tell_all();
            }
            _ => {}
        }
    }

    impl Listener for ShardSubscriptions {
        fn channel<'a>(&'a self, key: &'a [u8], end: Instant) -> BoxFuture<'a, String> {
            Box::pin(async move {
                let slot = Slot::for_key(key);
                if let Some(channel) = self.channels.lock().get(&slot) {
                    return channel.clone();
                }
                let channel = channel_in(slot, key, &self.name);
                let mut connection = self.connection.clone();
                let subscribes = connection.ssubscribe(&channel);
                if matches!(timeout_at(soon(end), subscribes).await, Ok(Ok(()))) {
                    self.channels.lock().insert(slot, channel.clone());
                }
                channel
            })
        }
    }

    /// Returns a channel name in this slot. Its hash tag is the key's or, if that one is in another
    /// slot, a number.
    fn channel_in(slot: Slot, key: &[u8], name: &str) -> String {
        let key = String::from_utf8_lossy(key);
        let tagged = key
            .split_once('{')
            .and_then(|(_, rest)| rest.split_once('}'));
        let tag = tagged
            .map(|(tag, _)| tag)
            .filter(|tag| !tag.is_empty())
            .unwrap_or(&key);
        let tags = iter::once(tag.to_owned()).chain((0..u32::MAX).map(|number| number.to_string()));
        let mut channels = tags.map(|tag| format!("{{{tag}}}{name}"));
        let found = channels.find(|channel| Slot::for_key(channel) == slot);
        found.unwrap_or_default()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_channel_is_in_the_slot_of_its_key() {
            let keys = [
                "k", "{t}k", "a{}b", "}", "{", "a}b", "{}", "a{b}c}d", "\u{0}",
            ];
            let keys = keys
                .iter()
                .map(|key| key.as_bytes())
                .chain([&b"\xff\xfe"[..], b""]);
            for key in keys {
                let slot = Slot::for_key(key);
                let channel = channel_in(slot, key, "redis-lock:1");
                assert_eq!(Slot::for_key(&channel), slot, "{key:?}: {channel}");
            }
        }
    }
}
