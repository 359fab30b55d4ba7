//! Connections of its own for each command that is under way: what the sync client asks on.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Client, Cmd, Connection, RedisResult, Value};

use crate::error::may_pass;

/// How long an answer may take that the server gives at once, and a connection.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// A connection on which nothing else is under way.
pub(crate) trait Line: Send {
    /// `route` is the key by which a cluster is asked. The answer has to come within this time.
    fn ask(&mut self, command: &Cmd, route: &[u8], within: Duration) -> RedisResult<Value>;
}

/// Where such connections come from.
pub(crate) trait Source: Send + Sync {
    fn open(&self) -> RedisResult<Box<dyn Line>>;
}

impl Source for Client {
    fn open(&self) -> RedisResult<Box<dyn Line>> {
        Ok(Box::new(self.get_connection_with_timeout(ANSWER_WITHIN)?))
    }
}

impl Line for Connection {
    fn ask(&mut self, command: &Cmd, _route: &[u8], within: Duration) -> RedisResult<Value> {
        self.set_read_timeout(Some(within))?;
        self.set_write_timeout(Some(ANSWER_WITHIN))?;
        command.query(self)
    }
}

/// Connections that are not in use.
pub(crate) struct Pool {
    source: Box<dyn Source>,
    idle: Mutex<Vec<Box<dyn Line>>>,
}

impl Pool {
    pub(crate) fn new(source: Box<dyn Source>) -> Pool {
        Pool {
            source,
            idle: Mutex::default(),
        }
    }

    pub(crate) fn open(&self) -> RedisResult<Box<dyn Line>> {
        self.source.open()
    }

    /// Asks on an idle connection, or on a new one.
    pub(crate) fn ask(&self, command: &Cmd, route: &[u8], within: Duration) -> RedisResult<Value> {
        let idle = self.idle().pop();
        let mut line = match idle {
            Some(line) => line,
            None => self.open()?,
        };
        let answer = line.ask(command, route, within);
        match &answer {
            // Where one is of no use any more, the others mostly aren't either.
            Err(error) if may_pass(error) => self.idle().clear(),
            _ => self.put_back(line),
        }
        answer
    }

    pub(crate) fn put_back(&self, line: Box<dyn Line>) {
        self.idle().push(line);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Box<dyn Line>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(feature = "cluster")]
mod cluster {
    use redis::cluster::{ClusterClient, ClusterConfig, ClusterConnection};
    use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
    use redis::{cmd, Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
    use std::time::Duration;

    use super::{Line, Source, ANSWER_WITHIN};

    impl Source for ClusterClient {
        fn open(&self) -> RedisResult<Box<dyn Line>> {
            let config = ClusterConfig::new()
                .set_connection_timeout(ANSWER_WITHIN)
                .set_response_timeout(ANSWER_WITHIN);
            Ok(Box::new(self.get_connection_with_config(config)?))
        }
    }

    impl Line for ClusterConnection {
        fn ask(&mut self, command: &Cmd, route: &[u8], within: Duration) -> RedisResult<Value> {
            self.set_read_timeout(Some(within))?;
            self.set_write_timeout(Some(ANSWER_WITHIN))?;
            let node =
                SingleNodeRoutingInfo::SpecificNode(Route::with_key(route, SlotAddr::Master));
            let answer = self.route_command(command, RoutingInfo::SingleNode(node));
            match answer.as_ref().err().and_then(asked_to) {
                Some(node) => {
                    let node = RoutingInfo::SingleNode(node);
                    self.route_command(&cmd("ASKING"), node.clone())?;
                    self.route_command(command, node)
                }
                None => answer,
            }
        }
    }

    /// Where a slot is on its way to, and the key may be there already.
    fn asked_to(error: &RedisError) -> Option<SingleNodeRoutingInfo> {
        if error.kind() != ErrorKind::Server(ServerErrorKind::Ask) {
            return None;
        }
        let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
        Some(SingleNodeRoutingInfo::ByAddress {
            host: host.to_owned(),
            port: port.parse().ok()?,
        })
    }
}
