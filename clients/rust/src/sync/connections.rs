//! Connections that run one command at a time.

use std::collections::VecDeque;
use std::time::Duration;

use redis::{Client, Cmd, RedisResult, Value};

use crate::error::may_pass;
use crate::mutex::Mutex;
use crate::owner::ANSWER_WITHIN;

pub(super) trait Connection: Send {
    /// Sends a command, in a cluster to the node of the key `route`, and returns the reply. Fails
    /// if the reply takes longer than `within`.
    fn ask(&mut self, command: &Cmd, route: &[u8], within: Duration) -> RedisResult<Value>;
}

impl Connection for redis::Connection {
    fn ask(&mut self, command: &Cmd, _route: &[u8], within: Duration) -> RedisResult<Value> {
        self.set_read_timeout(Some(within))?;
        self.set_write_timeout(Some(ANSWER_WITHIN))?;
        command.query(self)
    }
}

/// The pool of idle connections.
pub(super) struct Pool {
    open: Box<Open>,
    idle: Mutex<Vec<Box<dyn Connection>>>,
}

/// A function that opens a connection.
type Open = dyn Fn() -> RedisResult<Box<dyn Connection>> + Send + Sync;

impl Pool {
    pub(super) fn of_client(client: Client) -> Pool {
        Pool::new(move || Ok(Box::new(client.get_connection_with_timeout(ANSWER_WITHIN)?)))
    }

    fn new(open: impl Fn() -> RedisResult<Box<dyn Connection>> + Send + Sync + 'static) -> Pool {
        Pool {
            open: Box::new(open),
            idle: Mutex::default(),
        }
    }

    /// Sends a command on an idle connection, or on a new one.
    pub(super) fn ask(&self, command: &Cmd, route: &[u8], within: Duration) -> RedisResult<Value> {
        let idle = self.idle.lock().pop();
        let mut connection = idle.map_or_else(&self.open, Ok)?;
        let answer = connection.ask(command, route, within);
        match &answer {
            // The idle connections are usually broken too.
            Err(error) if may_pass(error) => self.idle.lock().clear(),
            _ => self.idle.lock().push(connection),
        }
        answer
    }
}

/// The lock's own connection, which carries its wait and to which its grant is tied.
#[derive(Default)]
pub(super) struct Session {
    connection: Option<Box<dyn Connection>>,
    /// The last two connections before it, whose reply was missing or incomplete. Stopping and
    /// continuing a process interrupts its read. The connections stay open until a newer one gets a
    /// reply, because only then has the server moved the place or the grant to it. Closing them
    /// earlier would end the place or the grant. Two, because the latest connection may have broken
    /// before the server read from it.
    unanswered: VecDeque<Box<dyn Connection>>,
}

impl Session {
    pub(super) fn ask(
        &mut self,
        pool: &Pool,
        command: &Cmd,
        route: &[u8],
        within: Duration,
    ) -> RedisResult<Value> {
        let open = self.connection.take();
        let mut connection = open.map_or_else(&pool.open, Ok)?;
        let answer = connection.ask(command, route, within);
        if answer.as_ref().is_err_and(may_pass) {
            self.unanswered.push_back(connection);
            if self.unanswered.len() > 2 {
                self.unanswered.pop_front();
            }
        } else {
            self.connection = Some(connection);
            self.unanswered.clear();
        }
        answer
    }
}

#[cfg(feature = "cluster")]
mod cluster {
    use std::time::Duration;

    use redis::cluster::{ClusterClient, ClusterConfig, ClusterConnection};
    use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
    use redis::{cmd, Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

    use super::{Connection, Pool, ANSWER_WITHIN};

    impl Pool {
        pub(in super::super) fn of_cluster(client: ClusterClient) -> Pool {
            let config = ClusterConfig::new()
                .set_connection_timeout(ANSWER_WITHIN)
                .set_response_timeout(ANSWER_WITHIN);
            Pool::new(move || Ok(Box::new(client.get_connection_with_config(config.clone())?)))
        }
    }

    impl Connection for ClusterConnection {
        fn ask(&mut self, command: &Cmd, route: &[u8], within: Duration) -> RedisResult<Value> {
            self.set_read_timeout(Some(within))?;
            self.set_write_timeout(Some(ANSWER_WITHIN))?;
            let node =
                SingleNodeRoutingInfo::SpecificNode(Route::with_key(route, SlotAddr::Master));
            let answer = self.route_command(command, RoutingInfo::SingleNode(node));
            let Some(node) = answer.as_ref().err().and_then(asked_to) else {
                return answer;
            };
            self.route_command(&cmd("ASKING"), node.clone())?;
            self.route_command(command, node)
        }
    }

    /// Returns the node that an ASK error names. The slot is moving there, and the key may have
    /// moved already.
    fn asked_to(error: &RedisError) -> Option<RoutingInfo> {
        if error.kind() != ErrorKind::Server(ServerErrorKind::Ask) {
            return None;
        }
        let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
        Some(RoutingInfo::SingleNode(SingleNodeRoutingInfo::ByAddress {
            host: host.to_owned(),
            port: port.parse().ok()?,
        }))
    }
}
