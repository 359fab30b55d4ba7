//! One line of input, and its answer.

use std::time::Duration;

use redis::{Client, IntoConnectionInfo};
use redis_lock_client::{Error, Options};
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
    Lost,
    Failed(String),
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

    /// Returns a client for each of the servers.
    pub fn clients(&self) -> Result<Vec<Client>, Refused> {
        let servers = self.0["servers"].as_array().into_iter().flatten();
        let client = |server: &Value| {
            let server = server.as_str().unwrap_or_default();
            let info = format!("redis://{server}/").into_connection_info()?;
            let mut settings = info.redis_settings().clone();
            if let Some(user) = self.text("username") {
                settings = settings.set_username(user);
            }
            if let Some(password) = self.text("password") {
                settings = settings.set_password(password);
            }
            Client::open(info.set_redis_settings(settings))
        };
        let clients = servers.map(client).collect::<Result<_, _>>();
        clients.map_err(|error| Error::Redis(error).into())
    }

    /// Returns the options of a lock.
    pub fn options(&self) -> Result<Options, Refused> {
        let mut options = Options::new();
        let times: [(_, Set<Duration>); 5] = [
            ("lease_ms", Options::lease),
            ("keep_ms", Options::keep),
            ("wait_ms", Options::wait),
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
        let flags: [(_, fn(Options) -> _); 3] = [
            ("shared", Options::shared),
            ("session", Options::session),
            ("reentrant", Options::reentrant),
        ];
        for (name, set) in flags {
            if self.is(name) {
                options = set(options);
            }
        }
        if let Some(token) = self.text("token") {
            options = options.token(token);
        }
        if let Some(data) = self.text("data") {
            options = options.data(data);
        }
        let name = self.lock();
        Ok(options.on_lost(move || say(&json!({"event": "lost", "lock": name}))))
    }

    /// Writes the answer to this order.
    pub fn answer(&self, answer: Result<Value, Refused>) {
        let mut answer = answer.unwrap_or_else(|refused| match refused {
            Refused::Error(error) => json!({"error": name(&error), "text": error.to_string()}),
            Refused::Unrepresentable => json!({"error": "unrepresentable"}),
            Refused::Misuse => json!({"error": "misuse", "text": "the lock isn't held"}),
            Refused::Lost => json!({"error": "lost", "text": "the lock was lost"}),
            Refused::Failed(text) => json!({"error": "failed", "text": text}),
        });
        answer["id"] = self.0["id"].clone();
        say(&answer);
    }
}

fn name(error: &Error) -> &'static str {
    match error {
        Error::InvalidArgument { .. } => "argument",
        Error::NotAcquired(_) => "not_acquired",
        Error::Cancelled => "cancelled",
        Error::Deadlock(_) => "deadlock",
        Error::Unavailable { .. } => "unavailable",
        Error::ModuleMissing => "module_missing",
        Error::NotReplicated(_) => "not_replicated",
        Error::NotHeld => "misuse",
        Error::Redis(error) => match error.code() {
            Some("NOPERM" | "NOAUTH" | "WRONGPASS") => "denied",
            _ => "other",
        },
        _ => "other",
    }
}
