//! The fields of an order, and the reply to one that is refused.

use std::sync::Arc;
use std::time::Duration;

use redis::cluster::ClusterClient;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{Client, ConnectionLike, ErrorKind, IntoConnectionInfo, RedisError, RedisResult};
use redis_lock_client::{Config, Error, Options};
use serde::Deserialize;

/// A setter of an option with a value, and one without.
type Set<T> = fn(Options, T) -> Options;
type Turn = fn(Options) -> Options;

/// A field that the library's types can't express fails the whole order.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Order {
    pub r#do: String,
    pub lock: String,
    pub of: u64,
    pub servers: Vec<String>,
    pub cluster: bool,
    pub sentinel: Option<String>,
    pub username: Option<String>,
    pub password: Option<String>,
    pub command_timeout_ms: Option<Time>,
    pub keys: Vec<String>,
    pub lease_ms: Option<Time>,
    pub keep_ms: Option<Time>,
    pub wait_ms: Option<Time>,
    pub margin_ms: Option<Time>,
    pub max_hold_ms: Option<Time>,
    pub at_least_ms: Option<Time>,
    pub limit: Option<u32>,
    pub permits: Option<u32>,
    pub replicas: Option<u32>,
    pub renew: Option<bool>,
    pub shared: Option<bool>,
    pub session: Option<bool>,
    pub data: Option<String>,
    pub work_ms: Time,
    pub fail: Option<String>,
    pub list: Option<String>,
    pub tasks: u64,
    pub seconds: u64,
    pub most_wait_ms: Time,
}

/// A time in milliseconds, which may be wrong on purpose.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(try_from = "f64")]
pub struct Time(Duration);

impl TryFrom<f64> for Time {
    type Error = std::time::TryFromFloatSecsError;

    fn try_from(ms: f64) -> Result<Time, Self::Error> {
        Duration::try_from_secs_f64(ms / 1000.0).map(Time)
    }
}

impl From<Time> for Duration {
    fn from(time: Time) -> Duration {
        time.0
    }
}

/// An order that was not carried out.
pub struct Refused {
    pub error: &'static str,
    pub text: String,
}

impl Refused {
    pub fn new(error: &'static str, text: String) -> Refused {
        Refused { error, text }
    }

    /// Returns the refusal of a release or an extension without a grant, which the library's types
    /// make impossible.
    pub fn misuse() -> Refused {
        Refused::new("misuse", "the lock isn't held".to_owned())
    }
}

impl From<RedisError> for Refused {
    fn from(error: RedisError) -> Refused {
        Error::Redis(error).into()
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::new(name(&error), error.to_string())
    }
}

fn name(error: &Error) -> &'static str {
    match error {
        Error::InvalidArgument { .. } => "argument",
        Error::NotAcquired => "not_acquired",
        Error::LockLost => "lost",
        Error::Cancelled => "cancelled",
        Error::Deadlock(_) => "deadlock",
        Error::Unavailable { .. } => "unavailable",
        Error::ModuleMissing => "module_missing",
        Error::NotReplicated(_) => "not_replicated",
        Error::NotHeld => "misuse",
        Error::Redis(error) => match (error.code(), error.kind()) {
            (Some("NOPERM" | "NOAUTH" | "WRONGPASS"), _) => "denied",
            (_, ErrorKind::AuthenticationFailed) => "denied",
            _ => "other",
        },
        _ => "other",
    }
}

/// Opens a connection of the program, beside those of its locks.
pub type Opener = Arc<dyn Fn() -> RedisResult<Box<dyn ConnectionLike>> + Send + Sync>;

impl Order {
    /// Returns the configuration of the library, and the program's own client.
    pub fn client(&self) -> RedisResult<(Config, Option<Opener>)> {
        let user = self.username.as_ref().zip(self.password.as_ref());
        let login = user.map_or(String::new(), |(name, password)| {
            format!("{name}:{password}@")
        });
        let url = |server| format!("redis://{login}{server}/").into_connection_info();
        let mut infos = self
            .servers
            .iter()
            .map(url)
            .collect::<RedisResult<Vec<_>>>()?;
        if let Some(name) = &self.sentinel {
            let addresses = infos.iter().map(|info| info.addr().clone());
            let kind = SentinelServerType::Master;
            let mut builder = SentinelClientBuilder::new(addresses, name.clone(), kind)?;
            if let Some((name, password)) = user {
                builder = builder.set_client_to_redis_username(name);
                builder = builder.set_client_to_redis_password(password);
            }
            return Ok((builder.build()?.into(), None));
        }
        if self.cluster {
            let client = ClusterClient::new(infos)?;
            let config = client.clone().into();
            let open: Opener = Arc::new(move || Ok(Box::new(client.get_connection()?)));
            return Ok((config, Some(open)));
        }
        let client = Client::open(infos.remove(0))?;
        let config = client.clone().into();
        let open: Opener = Arc::new(move || Ok(Box::new(client.get_connection()?)));
        Ok((config, Some(open)))
    }

    /// Returns the options of a lock.
    pub fn options(&self) -> Options {
        let mut options = Options::new();
        let times: [(_, Set<Duration>); 6] = [
            (self.lease_ms, Options::lease),
            (self.keep_ms, Options::keep),
            (self.wait_ms, Options::wait),
            (self.margin_ms, Options::margin),
            (self.max_hold_ms, Options::max_hold),
            (self.at_least_ms, Options::at_least),
        ];
        for (time, set) in times {
            options = time.map_or(options.clone(), |time| set(options, time.into()));
        }
        let counts: [(_, Set<u32>); 3] = [
            (self.limit, Options::limit),
            (self.permits, Options::permits),
            (self.replicas, Options::replicas),
        ];
        for (count, set) in counts {
            options = count.map_or(options.clone(), |count| set(options, count));
        }
        let turns: [(_, Turn); 3] = [
            (self.renew == Some(false), Options::without_renewal),
            (self.shared == Some(true), Options::shared),
            (self.session == Some(true), Options::session),
        ];
        for (_, turn) in turns.into_iter().filter(|(is_asked, _)| *is_asked) {
            options = turn(options);
        }
        match &self.data {
            Some(data) => options.data(data.clone()),
            None => options,
        }
    }
}
