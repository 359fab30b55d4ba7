//! The connection that all locks share.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::aio::{ConnectionManager, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, Cmd, RedisError, RedisResult, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::error::may_pass;
use crate::owner::ANSWER_WITHIN;

pub(super) type Answer<'a> = BoxFuture<'a, RedisResult<Value>>;

pub(super) trait Connection: Send + Sync {
    /// Sends a command, in a cluster to the node of the key `route`, and returns the reply. Fails
    /// if the reply takes longer than `within` on an open connection. If the redis crate connects
    /// by itself, both together have twice that time.
    fn ask<'a>(&'a self, command: &'a Cmd, route: &'a [u8], within: Duration) -> Answer<'a>;
}

impl Connection for ConnectionManager {
    fn ask<'a>(&'a self, command: &'a Cmd, _route: &'a [u8], within: Duration) -> Answer<'a> {
        Box::pin(async move {
            let mut connection = self.clone();
            in_time(2 * within, command.query_async(&mut connection)).await
        })
    }
}

async fn in_time<T>(
    within: Duration,
    asked: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    let too_late = |_| Err(RedisError::from(io::Error::from(io::ErrorKind::TimedOut)));
    timeout(within, asked).await.unwrap_or_else(too_late)
}

/// A connection that is replaced when it is lost.
pub(super) struct Reconnecting {
    client: Client,
    current: Mutex<Option<Arc<MultiplexedConnection>>>,
}

impl Reconnecting {
    pub(super) fn new(client: Client, connection: Option<MultiplexedConnection>) -> Reconnecting {
        Reconnecting {
            client,
            current: Mutex::new(connection.map(Arc::new)),
        }
    }

    async fn connection(&self) -> RedisResult<Arc<MultiplexedConnection>> {
        let mut current = self.current.lock().await;
        if let Some(connection) = &*current {
            return Ok(Arc::clone(connection));
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(ANSWER_WITHIN))
            .set_response_timeout(Some(ANSWER_WITHIN));
        let made = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        Ok(Arc::clone(current.insert(Arc::new(made))))
    }
}

impl Connection for Reconnecting {
    fn ask<'a>(&'a self, command: &'a Cmd, _route: &'a [u8], within: Duration) -> Answer<'a> {
        Box::pin(async move {
            let connection = self.connection().await?;
            let mut asked = MultiplexedConnection::clone(&connection);
            let answer = in_time(within, command.query_async(&mut asked)).await;
            match &answer {
                // The reply may still come, and the next command must not overtake this one.
                Err(error) if error.is_timeout() && within < ANSWER_WITHIN => {}
                Err(error) if may_pass(error) => {
                    let mut current = self.current.lock().await;
                    current.take_if(|it| Arc::ptr_eq(it, &connection));
                }
                Ok(_) | Err(_) => {}
            }
            answer
        })
    }
}

#[cfg(feature = "cluster-async")]
mod cluster {
    use std::time::Duration;

    use redis::cluster_async::ClusterConnection;
    use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
    use redis::Cmd;

    use super::{in_time, Answer, Connection};

    impl Connection for ClusterConnection {
        fn ask<'a>(&'a self, command: &'a Cmd, route: &'a [u8], within: Duration) -> Answer<'a> {
            let node =
                SingleNodeRoutingInfo::SpecificNode(Route::with_key(route, SlotAddr::Master));
            Box::pin(async move {
                let mut connection = self.clone();
                let asked =
                    connection.route_command(command.clone(), RoutingInfo::SingleNode(node));
                let answer = in_time(2 * within, asked).await?;
                answer.extract_error()
            })
        }
    }
}
