//! The connection that all locks share.

use std::io;

use futures_util::future::BoxFuture;
use redis::aio::{ConnectionManager, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, Cmd, RedisError, RedisResult, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::error::may_pass;
use crate::lines::ANSWER_WITHIN;

pub(crate) trait Line: Send + Sync {
    /// `route` is the key by which a cluster is asked.
    fn ask<'a>(&'a self, command: &'a Cmd, route: &'a [u8]) -> BoxFuture<'a, RedisResult<Value>>;
}

impl Line for ConnectionManager {
    fn ask<'a>(&'a self, command: &'a Cmd, _route: &'a [u8]) -> BoxFuture<'a, RedisResult<Value>> {
        Box::pin(async move { command.query_async(&mut self.clone()).await })
    }
}

pub(crate) fn too_late() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

/// A connection that is made anew when it is lost.
pub(crate) struct Own {
    client: Client,
    current: Mutex<Current>,
}

#[derive(Default)]
struct Current {
    number: u64,
    connection: Option<MultiplexedConnection>,
}

impl Own {
    pub(crate) fn new(client: Client, connection: Option<MultiplexedConnection>) -> Own {
        Own {
            client,
            current: Mutex::new(Current {
                number: 0,
                connection,
            }),
        }
    }

    async fn connection(&self) -> RedisResult<(u64, MultiplexedConnection)> {
        let mut current = self.current.lock().await;
        if let Some(connection) = &current.connection {
            return Ok((current.number, connection.clone()));
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(ANSWER_WITHIN))
            .set_response_timeout(Some(ANSWER_WITHIN));
        let made = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        current.number += 1;
        current.connection = Some(made.clone());
        Ok((current.number, made))
    }

    async fn leave(&self, number: u64) {
        let mut current = self.current.lock().await;
        if current.number == number {
            current.connection = None;
        }
    }
}

impl Line for Own {
    fn ask<'a>(&'a self, command: &'a Cmd, _route: &'a [u8]) -> BoxFuture<'a, RedisResult<Value>> {
        Box::pin(async move {
            let (number, mut connection) = self.connection().await?;
            let asked = timeout(ANSWER_WITHIN, command.query_async(&mut connection)).await;
            let answer = asked.unwrap_or_else(|_| Err(too_late()));
            if answer.as_ref().is_err_and(may_pass) {
                self.leave(number).await;
            }
            answer
        })
    }
}

#[cfg(feature = "cluster-async")]
pub(crate) use in_a_cluster::cluster;

#[cfg(feature = "cluster-async")]
mod in_a_cluster {
    use futures_util::future::BoxFuture;
    use redis::cluster::ClusterClientBuilder;
    use redis::cluster_async::ClusterConnection;
    use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
    use redis::{Cmd, ProtocolVersion, RedisResult, Value};

    use super::super::bells::ShardEar;
    use super::Line;

    pub(crate) async fn cluster(
        builder: ClusterClientBuilder,
    ) -> RedisResult<(ClusterConnection, ShardEar)> {
        let (sender, pushes) = tokio::sync::mpsc::unbounded_channel();
        let client = builder
            .use_protocol(ProtocolVersion::RESP3)
            .push_sender(sender)
            .build()?;
        let connection = client.get_async_connection().await?;
        let ear = ShardEar::new(connection.clone(), pushes);
        Ok((connection, ear))
    }

    impl Line for ClusterConnection {
        fn ask<'a>(&'a self, command: &'a Cmd, key: &'a [u8]) -> BoxFuture<'a, RedisResult<Value>> {
            let node = SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master));
            Box::pin(async move {
                let route = RoutingInfo::SingleNode(node);
                self.clone()
                    .route_command(command.clone(), route)
                    .await?
                    .extract_error()
            })
        }
    }
}
