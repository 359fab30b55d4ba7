//! One line of input, and its answer.

use std::time::Duration;

use redis::cluster::ClusterClient;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{Client, Cmd, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisResult};
use redis_lock_client::{Config, Error, Options};
use serde_json::{json, Value};

use crate::say;

pub struct Order(pub Value);

/// A setter of an option.
type Set<T> = fn(Options, T) -> Options;

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
    /// Returns a function that appends to a list.
    pub fn writer(&self, list: Option<String>) -> Result<Box<dyn FnMut(i64)>, Refused> {
        let append = move |value: i64| {
            let mut command = Cmd::new();
            command.arg("RPUSH").arg(&list).arg(value);
            command
        };
        let writer: RedisResult<Box<dyn FnMut(i64)>> = match self {
            Program::One(client) => client.get_connection().map(|mut connection| {
                Box::new(move |value| drop(append(value).exec(&mut connection))) as Box<_>
            }),
            Program::Cluster(client) => client.get_connection().map(|mut connection| {
                Box::new(move |value| drop(append(value).exec(&mut connection))) as Box<_>
            }),
        };
        writer.map_err(|error| Error::Redis(error).into())
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::Error(error)
    }
}

impl Order {
    pub fn id(&self) -> u64 {
        self.number("id")
    }

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

    pub fn is(&self, name: &str) -> bool {
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
        let made = match (self.text("sentinel"), self.is("cluster")) {
            (Some(name), _) => self.sentinel(&name).map(|client| (client.into(), None)),
            (None, true) => ClusterClient::new(self.infos()?).map(|client| {
                let program = Program::Cluster(Box::new(client.clone()));
                (client.into(), Some(program))
            }),
            (None, false) => Client::open(self.infos()?.remove(0)).map(|client| {
                let program = Program::One(Box::new(client.clone()));
                (client.into(), Some(program))
            }),
        };
        made.map_err(|error| Error::Redis(error).into())
    }

    fn sentinel(&self, name: &str) -> RedisResult<SentinelClient> {
        let infos = self.infos().unwrap_or_default();
        let addresses = infos.iter().map(|info| info.addr().clone());
        let kind = SentinelServerType::Master;
        let mut builder = SentinelClientBuilder::new(addresses, name, kind)?;
        if let Some(user) = self.text("username") {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = self.text("password") {
            builder = builder.set_client_to_redis_password(password);
        }
        builder.build()
    }

    fn infos(&self) -> Result<Vec<ConnectionInfo>, Refused> {
        let servers = self.0["servers"].as_array().into_iter().flatten();
        let info = |server: &Value| {
            let server = server.as_str().unwrap_or_default();
            let info = format!("redis://{server}/").into_connection_info()?;
            let mut settings = info.redis_settings().clone();
            if let Some(user) = self.text("username") {
                settings = settings.set_username(user);
            }
            if let Some(password) = self.text("password") {
                settings = settings.set_password(password);
            }
            Ok(info.set_redis_settings(settings))
        };
        let infos: RedisResult<_> = servers.map(info).collect();
        infos.map_err(|error| Error::Redis(error).into())
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
        if self.0["renew"] == json!(false) {
            options = options.without_renewal();
        }
        let flags: [(_, fn(Options) -> _); 2] =
            [("shared", Options::shared), ("session", Options::session)];
        for (name, set) in flags {
            if self.is(name) {
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
