//! The clients under test, and the abilities that they lack.

use std::path::{Path, PathBuf};

use anyhow::{ensure, Result};

use crate::table::Ability::{self, Background, Interruption, Reentrant, Runtimes};
use crate::table::Behaviour;

/// The abilities that the clients of PHP lack.
const PHP_LACKS: &[Ability] = &[Reentrant, Runtimes, Background, Interruption];

/// The clients, the folder of their driver under clients/, and the abilities that they lack.
const CLIENTS: &[(&str, &str, &[Ability])] = &[
    ("python-sync", "python", &[Runtimes]),
    ("python-asyncio", "python", &[Reentrant, Runtimes]),
    ("ioredis", "node", &[Reentrant]),
    ("node-redis", "node", &[Reentrant]),
    ("rust-sync", "rust", &[Reentrant, Runtimes]),
    ("rust-tokio", "rust", &[Reentrant, Runtimes]),
    ("go", "go", &[Reentrant, Runtimes]),
    ("jedis", "java", &[Reentrant, Runtimes]),
    ("lettuce", "java", &[Reentrant, Runtimes]),
    ("php", "php", PHP_LACKS),
    ("predis", "php", PHP_LACKS),
];

/// The clients of several independent masters, of the Go library.
const OF_MASTERS: &[&str] = &["redsync", "redsync-fast"];

/// Returns the clients that chaos plays on several independent masters.
pub fn of_masters() -> Vec<Client> {
    let client = |name: &&'static str| Client {
        name,
        folder: clients_folder().join("go"),
        lacks: &[],
    };
    OF_MASTERS.iter().map(client).collect()
}

/// Returns true if a client lacks an ability.
pub fn lacks(client: &str, ability: Ability) -> bool {
    let of_client = CLIENTS.iter().filter(|(name, ..)| *name == client);
    of_client
        .flat_map(|(.., lacks)| lacks.iter())
        .any(|it| *it == ability)
}

/// A client under test.
#[derive(Clone)]
pub struct Client {
    pub name: &'static str,
    pub folder: PathBuf,
    pub lacks: &'static [Ability],
}

impl Client {
    /// Returns true if each driver of the client starts a JVM.
    pub fn starts_a_jvm(&self) -> bool {
        self.folder.ends_with("java")
    }

    /// Returns true if the client has the abilities that a row needs.
    pub fn can_do(&self, behaviour: &Behaviour) -> bool {
        !behaviour.needs.iter().any(|it| self.lacks.contains(it))
    }
}

/// Returns the folder of all libraries beside the sources of this program.
pub fn clients_folder() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("a folder above").to_owned()
}

/// Returns the clients of these names and those of these libraries; all clients if both lists are empty.
pub fn chosen(clients: &Path, names: &[String], libraries: &[String]) -> Result<Vec<Client>> {
    let known: Vec<&str> = CLIENTS.iter().map(|(client, ..)| *client).collect();
    for name in names {
        let is_known = known.contains(&name.as_str());
        ensure!(is_known, "no client {name}; there are {known:?}");
    }
    for library in libraries {
        let is_known = CLIENTS.iter().any(|(_, folder, _)| folder == library);
        ensure!(is_known, "no library {library}");
    }
    let is_wanted = |name: &str, folder: &str| {
        let all = names.is_empty() && libraries.is_empty();
        all || names.iter().any(|it| it == name) || libraries.iter().any(|it| it == folder)
    };
    let all = CLIENTS.iter();
    let all = all.filter(|(name, folder, _)| is_wanted(name, folder));
    let all = all.map(|(name, folder, lacks)| Client {
        name,
        folder: clients.join(folder),
        lacks,
    });
    let there: Vec<Client> = all
        .filter(|client| !names.is_empty() || client.folder.join("driver").exists())
        .collect();
    ensure!(!there.is_empty(), "no client has a driver");
    Ok(there)
}
