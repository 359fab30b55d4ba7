//! How tasks are told that it is their turn: by messages on a channel of this program's own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::future::BoxFuture;
use futures_util::StreamExt;
use redis::aio::PubSubStream;
use redis::{Client, RedisResult};
use tokio::sync::{watch, Notify};
use tokio::task::AbortHandle;
use tokio::time::{self, sleep_until, timeout_at};

use crate::error::Backoff;
use crate::lines::ANSWER_WITHIN;

/// What listens.
pub(crate) trait Ear: Send + Sync {
    /// Where a task that waits for this key until then is to be told of its turn. It is listened to,
    /// unless that isn't possible now; then the task asks without being told.
    fn channel<'a>(&'a self, key: &'a [u8], end: Instant) -> BoxFuture<'a, String>;

    /// For a task that waits.
    fn bell(&self) -> Bell;
}

/// The tasks that wait.
#[derive(Default)]
pub(crate) struct Bells {
    last: AtomicU64,
    waiting: Mutex<HashMap<u64, Arc<Notify>>>,
}

/// One of them. The number is what a message says: tokens stay secret.
pub(crate) struct Bell {
    pub(crate) number: u64,
    notify: Arc<Notify>,
    bells: Arc<Bells>,
}

impl Bell {
    pub(crate) async fn rung(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.bells.waiting().remove(&self.number);
    }
}

impl Bells {
    fn bell(self: &Arc<Self>) -> Bell {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let notify = Arc::new(Notify::new());
        self.waiting().insert(number, Arc::clone(&notify));
        Bell {
            number,
            notify,
            bells: Arc::clone(self),
        }
    }

    fn ring(&self, message: &[u8]) {
        let number = std::str::from_utf8(message)
            .ok()
            .and_then(|text| text.parse().ok());
        let bell = number.and_then(|number: u64| self.waiting().get(&number).cloned());
        bell.inspect(|bell| bell.notify_one());
    }

    /// Messages may have been missed.
    fn ring_all(&self) {
        self.waiting().values().for_each(|bell| bell.notify_one());
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, Arc<Notify>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a task waits until it is listened to.
fn soon(end: Instant) -> time::Instant {
    end.min(Instant::now() + ANSWER_WITHIN).into()
}

fn random_name() -> String {
    format!("redis-lock:{:032x}", rand::random::<u128>())
}

/// Listens on a connection of its own, from the first task that waits on.
pub(crate) struct OwnEar {
    client: Client,
    channel: String,
    bells: Arc<Bells>,
    listens: watch::Sender<bool>,
    task: Mutex<Option<AbortHandle>>,
}

pub(crate) fn listen(client: Client) -> OwnEar {
    OwnEar {
        client,
        channel: random_name(),
        bells: Arc::default(),
        listens: watch::Sender::new(false),
        task: Mutex::default(),
    }
}

impl Ear for OwnEar {
    fn channel<'a>(&'a self, _key: &'a [u8], end: Instant) -> BoxFuture<'a, String> {
        Box::pin(async move {
            self.start();
            let mut listens = self.listens.subscribe();
            let _ = timeout_at(soon(end), listens.wait_for(|listens| *listens)).await;
            self.channel.clone()
        })
    }

    fn bell(&self) -> Bell {
        self.bells.bell()
    }
}

impl OwnEar {
    fn start(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        task.get_or_insert_with(|| {
            let listens = hear(
                self.client.clone(),
                self.channel.clone(),
                Arc::clone(&self.bells),
                self.listens.clone(),
            );
            tokio::spawn(listens).abort_handle()
        });
    }
}

impl Drop for OwnEar {
    fn drop(&mut self) {
        let task = self.task.get_mut().unwrap_or_else(PoisonError::into_inner);
        task.iter().for_each(AbortHandle::abort);
    }
}

async fn hear(client: Client, channel: String, bells: Arc<Bells>, listens: watch::Sender<bool>) {
    let mut backoff = Backoff::new();
    loop {
        if let Ok(mut messages) = subscribed(&client, &channel).await {
            backoff = Backoff::new();
            listens.send_replace(true);
            bells.ring_all();
            while let Some(message) = messages.next().await {
                bells.ring(message.get_payload_bytes());
            }
            listens.send_replace(false);
        }
        sleep_until(backoff.next(None).into()).await;
    }
}

async fn subscribed(client: &Client, channel: &str) -> RedisResult<PubSubStream> {
    let mut connection = client.get_async_pubsub().await?;
    connection.subscribe(channel).await?;
    Ok(connection.into_on_message())
}

#[cfg(feature = "cluster-async")]
pub(crate) use in_a_cluster::ShardEar;

#[cfg(feature = "cluster-async")]
mod in_a_cluster {
    use std::collections::HashMap;
    use std::iter;
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
    use std::time::Instant;

    use futures_util::future::BoxFuture;
    use redis::cluster_async::ClusterConnection;
    use redis::cluster_routing::Slot;
    use redis::{PushInfo, PushKind, Value};
    use tokio::sync::mpsc::UnboundedReceiver;
    use tokio::task::AbortHandle;
    use tokio::time::timeout_at;

    use super::{random_name, soon, Bell, Bells, Ear};

    /// Listens on the connections of a cluster, on one shard channel for each slot.
    pub(crate) struct ShardEar {
        connection: ClusterConnection,
        name: String,
        bells: Arc<Bells>,
        subscribed: Arc<Subscribed>,
        task: AbortHandle,
    }

    /// The channel of each slot that is listened to.
    #[derive(Default)]
    struct Subscribed(Mutex<HashMap<Slot, String>>);

    impl Subscribed {
        fn channels(&self) -> MutexGuard<'_, HashMap<Slot, String>> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl ShardEar {
        pub(crate) fn new(
            connection: ClusterConnection,
            mut pushes: UnboundedReceiver<PushInfo>,
        ) -> ShardEar {
            let bells: Arc<Bells> = Arc::default();
            let subscribed: Arc<Subscribed> = Arc::default();
            let (rung, noted) = (Arc::clone(&bells), Arc::clone(&subscribed));
            let hears = tokio::spawn(async move {
                while let Some(push) = pushes.recv().await {
                    hear(&push, &rung, &noted);
                }
            });
            ShardEar {
                connection,
                name: random_name(),
                bells,
                subscribed,
                task: hears.abort_handle(),
            }
        }
    }

    fn hear(push: &PushInfo, bells: &Bells, subscribed: &Subscribed) {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::SMessage, [_, Value::BulkString(message)]) => bells.ring(message),
            (PushKind::SSubscribe, _) => bells.ring_all(),
            // The slot has moved.
            (PushKind::SUnsubscribe, [Value::BulkString(channel), ..]) => {
                subscribed.channels().remove(&Slot::for_key(channel));
                bells.ring_all();
            }
            _ => {}
        }
    }

    impl Ear for ShardEar {
        fn channel<'a>(&'a self, key: &'a [u8], end: Instant) -> BoxFuture<'a, String> {
            Box::pin(async move {
                let slot = Slot::for_key(key);
                if let Some(channel) = self.subscribed.channels().get(&slot) {
                    return channel.clone();
                }
                let channel = channel_in(slot, key, &self.name);
                let mut connection = self.connection.clone();
                let subscribes = connection.ssubscribe(&channel);
                if matches!(timeout_at(soon(end), subscribes).await, Ok(Ok(()))) {
                    self.subscribed.channels().insert(slot, channel.clone());
                }
                channel
            })
        }

        fn bell(&self) -> Bell {
            self.bells.bell()
        }
    }

    impl Drop for ShardEar {
        fn drop(&mut self) {
            self.task.abort();
        }
    }

    /// A name in this slot: with the key's own hash tag, or where that doesn't do, with a number's.
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
