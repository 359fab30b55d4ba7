//! One line of input, and its answer.

use std::time::Duration;

use redis::cluster::ClusterClient;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    Client, ConnectionInfo, ConnectionLike, ErrorKind, IntoConnectionInfo, RedisError, RedisResult,
};
use redis_lock_client::{Config, Error, Options};
use serde_json::{json, Value};

use crate::say;

pub struct Order(pub Value);

/// A setter of an option with a value, and one without.
type Set<T> = fn(Options, T) -> Options;
type Turn = fn(Options) -> Options;

/// An order that was not carried out.
pub enum Refused {
    Error(Error),
    /// A value for which the library's types have no words.
    Unrepresentable,
    /// Released or extended though not held. The library's types make that impossible.
    Misuse,
    Failed(String),
}

/// The client that the program has beside its locks.
#[derive(Clone)]
pub enum Program {
    One(Box<Client>),
    Cluster(Box<ClusterClient>),
}

impl Program {
    pub fn connect(&self) -> RedisResult<Box<dyn ConnectionLike>> {
        Ok(match self {
            Program::One(client) => Box::new(client.get_connection()?),
            Program::Cluster(client) => Box::new(client.get_connection()?),
        })
    }
}

impl From<RedisError> for Refused {
    fn from(error: RedisError) -> Refused {
        Refused::Error(Error::Redis(error))
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::Error(error)
    }
}

impl Order {
    pub fn does(&self) -> &str {
        self.0["do"].as_str().unwrap_or_default()
    }

    pub fn lock(&self) -> String {
        self.text("lock").unwrap_or_default()
    }

    pub fn text(&self, name: &str) -> Option<String> {
        self.0[name].as_str().map(str::to_owned)
    }

    pub fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_default()
    }

    fn is(&self, name: &str) -> bool {
        self.0[name] == json!(true)
    }

    /// Returns a time in milliseconds, which may be wrong on purpose.
    pub fn time(&self, name: &str) -> Result<Option<Duration>, Refused> {
        match &self.0[name] {
            Value::Null => Ok(None),
            Value::Number(ms) => {
                let seconds = ms.as_f64().unwrap_or(f64::NAN) / 1000.0;
                let time = Duration::try_from_secs_f64(seconds);
                time.map(Some).map_err(|_| Refused::Unrepresentable)
            }
            _ => Err(Refused::Unrepresentable),
        }
    }

    fn count(&self, name: &str) -> Result<Option<u32>, Refused> {
        let value = &self.0[name];
        let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
        match count {
            None if !value.is_null() => Err(Refused::Unrepresentable),
            count => Ok(count),
        }
    }

    pub fn keys(&self) -> Result<Vec<String>, Refused> {
        let keys = self.0["keys"].as_array().into_iter().flatten();
        let keys = keys.map(|key| key.as_str().map(str::to_owned));
        keys.collect::<Option<_>>().ok_or(Refused::Unrepresentable)
    }

    /// Returns the configuration of the library, and the program's client.
    pub fn client(&self) -> Result<(Config, Option<Program>), Refused> {
        let mut infos = self.infos()?;
        if let Some(name) = self.text("sentinel") {
            return Ok((self.sentinel(&name, &infos)?.into(), None));
        }
        Ok(match self.is("cluster") {
            true => {
                let client = ClusterClient::new(infos)?;
                (
                    client.clone().into(),
                    Some(Program::Cluster(Box::new(client))),
                )
            }
            false => {
                let client = Client::open(infos.remove(0))?;
                (client.clone().into(), Some(Program::One(Box::new(client))))
            }
        })
    }

    fn sentinel(&self, name: &str, infos: &[ConnectionInfo]) -> RedisResult<SentinelClient> {
        let addresses = infos.iter().map(|info| info.addr().clone());
        let kind = SentinelServerType::Master;
        let mut builder = SentinelClientBuilder::new(addresses, name, kind)?;
        if let (Some(user), Some(password)) = (self.text("username"), self.text("password")) {
            builder = builder.set_client_to_redis_username(user);
            builder = builder.set_client_to_redis_password(password);
        }
        builder.build()
    }

    fn infos(&self) -> RedisResult<Vec<ConnectionInfo>> {
        let servers = self.0["servers"].as_array().into_iter().flatten();
        let info = |server: &Value| {
            let server = server.as_str().unwrap_or_default();
            let info = format!("redis://{server}/").into_connection_info()?;
            let mut settings = info.redis_settings().clone();
            if let (Some(user), Some(password)) = (self.text("username"), self.text("password")) {
                settings = settings.set_username(user).set_password(password);
            }
            Ok(info.set_redis_settings(settings))
        };
        servers.map(info).collect()
    }

    /// Returns the options of a lock.
    pub fn options(&self) -> Result<Options, Refused> {
        let mut options = Options::new();
        let times: [(_, Set<Duration>); 6] = [
            ("lease_ms", Options::lease),
            ("keep_ms", Options::keep),
            ("wait_ms", Options::wait),
            ("margin_ms", Options::margin),
            ("max_hold_ms", Options::max_hold),
            ("at_least_ms", Options::at_least),
        ];
        for (name, set) in times {
            if let Some(time) = self.time(name)? {
                options = set(options, time);
            }
        }
        let counts: [(_, Set<u32>); 3] = [
            ("limit", Options::limit),
            ("permits", Options::permits),
            ("replicas", Options::replicas),
        ];
        for (name, set) in counts {
            if let Some(count) = self.count(name)? {
                options = set(options, count);
            }
        }
        let flags: [(_, _, Turn); 3] = [
            ("renew", false, Options::without_renewal),
            ("shared", true, Options::shared),
            ("session", true, Options::session),
        ];
        for (name, value, set) in flags {
            if self.0[name] == json!(value) {
                options = set(options);
            }
        }
        if let Some(data) = self.text("data") {
            options = options.data(data);
        }
        let name = self.lock();
        Ok(options.on_lost(move |_| say(&json!({"event": "lost", "lock": name}))))
    }

    /// Writes the answer to this order.
    pub fn answer(&self, answer: Result<Value, Refused>) {
        let mut answer = answer.unwrap_or_else(|refused| match refused {
            Refused::Error(error) => json!({"error": name(&error), "text": error.to_string()}),
            Refused::Unrepresentable => json!({"error": "unrepresentable"}),
            Refused::Misuse => json!({"error": "misuse", "text": "the lock isn't held"}),
            Refused::Failed(text) => json!({"error": "failed", "text": text}),
        });
        answer["id"] = self.0["id"].clone();
        say(&answer);
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
