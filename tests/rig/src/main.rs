//! `rig serve`: starts servers for tests in any language, by orders on stdin.
//!
//! Each order is a line of words, and so is its reply on stdout: `ok` and words, or `error`. The
//! reason of an error goes to stderr, with the end of the server's log. A server is named by its
//! port. REDIS_SERVER and REDIS_LOCK_MODULE name the program and the module.
//!
//! | order | reply | |
//! |---|---|---|
//! | `start [ARGUMENT ...]` | port | starts a server with the module |
//! | `bare` | port | starts a server without the module |
//! | `tls` | port, TLS port, file | starts a server with TLS, and its certificate for localhost |
//! | `cluster COUNT` | ports | starts a cluster, whose nodes have equal parts of the slots |
//! | `sentinel [NAME PORT]` | port | starts a Sentinel, which watches a primary by this name |
//! | `port` | port | finds a port where no server is |
//! | `freeze PORT`, `thaw PORT` | | stops a server (SIGSTOP), or continues it |
//! | `end PORT` | | kills a server, and fails if it has crashed before |
//!
//! At `quit`, and when stdin closes, all servers end. The program fails if one has crashed before.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{bail, ensure, Context, Result};
use redis_lock_rig::{form_cluster, free_port, node_lines, Plan, Process};
use tempfile::TempDir;

fn main() -> Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    ensure!(words == ["serve"], "usage: rig serve");
    let mut servers = Servers {
        running: BTreeMap::new(),
        started: 0,
        folder: tempfile::tempdir()?,
    };
    for order in io::stdin().lines() {
        let order = order?;
        if order == "quit" {
            break;
        }
        let words: Vec<&str> = order.split_whitespace().collect();
        match servers.execute(&words) {
            Ok(reply) => println!(
                "{}",
                [&["ok".to_owned()], reply.as_slice()].concat().join(" ")
            ),
            Err(reason) => {
                eprintln!("rig: {order}: {reason:#}");
                println!("error");
            }
        }
    }
    servers.running.values().try_for_each(check)
}

/// Fails if a server has crashed.
fn check(server: &Process) -> Result<()> {
    match server.crash() {
        Some(crash) => bail!("{crash}\n{}", server.log_tail()),
        None => Ok(()),
    }
}

/// The running servers, by their ports.
struct Servers {
    running: BTreeMap<u16, Process>,
    started: u32,
    folder: TempDir,
}

impl Servers {
    fn execute(&mut self, words: &[&str]) -> Result<Vec<String>> {
        match *words {
            ["start", ref arguments @ ..] => self.start(Plan {
                arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
                ..with_module()?
            }),
            ["bare"] => self.start(bare()?),
            ["tls"] => self.start_with_tls(),
            ["cluster", count] => self.start_cluster(count.parse()?),
            ["sentinel"] => self.start_sentinel(Vec::new()),
            ["sentinel", name, port] => {
                self.start_sentinel(vec![format!("sentinel monitor {name} 127.0.0.1 {port} 1")])
            }
            ["port"] => Ok(vec![free_port().to_string()]),
            ["freeze", port] => self.at(port)?.freeze().map(|()| Vec::new()),
            ["thaw", port] => self.at(port)?.thaw().map(|()| Vec::new()),
            ["end", port] => {
                // A test may end a server again, which it ended before.
                let ended = self.running.remove(&port.parse()?);
                ended.iter().try_for_each(check).map(|()| Vec::new())
            }
            _ => bail!("not an order"),
        }
    }

    fn at(&self, port: &str) -> Result<&Process> {
        self.running.get(&port.parse()?).context("no such server")
    }

    fn new_folder(&mut self) -> Result<PathBuf> {
        self.started += 1;
        let folder = self.folder.path().join(self.started.to_string());
        fs::create_dir(&folder)?;
        Ok(folder)
    }

    fn start(&mut self, plan: Plan) -> Result<Vec<String>> {
        let server = Process::start(plan, &self.new_folder()?)?;
        Ok(vec![self.add(server)])
    }

    fn add(&mut self, server: Process) -> String {
        let port = server.port();
        self.running.insert(port, server);
        port.to_string()
    }

    fn start_cluster(&mut self, count: usize) -> Result<Vec<String>> {
        let mut node = || {
            let plan = Plan {
                lines: node_lines(),
                ..with_module()?
            };
            Process::start(plan, &self.new_folder()?)
        };
        let nodes = (0..count).map(|_| node()).collect::<Result<Vec<_>>>()?;
        form_cluster(&nodes)?;
        Ok(nodes.into_iter().map(|node| self.add(node)).collect())
    }

    fn start_sentinel(&mut self, lines: Vec<String>) -> Result<Vec<String>> {
        self.start(Plan {
            lines,
            arguments: vec!["--sentinel".to_owned()],
            ..bare()?
        })
    }

    fn start_with_tls(&mut self) -> Result<Vec<String>> {
        let folder = self.new_folder()?;
        let [key, certificate] = ["key.pem", "certificate.pem"].map(|name| folder.join(name));
        let made = Command::new("openssl")
            .args([
                "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            ])
            .args(["-subj", "/CN=localhost"])
            .args(["-addext", "subjectAltName=DNS:localhost"])
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .output()
            .context("openssl can't be run")?;
        ensure!(made.status.success(), "{made:?}");
        let tls_port = free_port();
        let certificate = certificate.display().to_string();
        let lines = vec![
            format!("tls-port {tls_port}"),
            format!("tls-cert-file {certificate}"),
            format!("tls-key-file {}", key.display()),
            format!("tls-ca-cert-file {certificate}"),
            "tls-auth-clients no".to_owned(),
        ];
        let mut reply = self.start(Plan {
            lines,
            ..with_module()?
        })?;
        reply.extend([tls_port.to_string(), certificate]);
        Ok(reply)
    }
}

fn bare() -> Result<Plan> {
    let program = env::var_os("REDIS_SERVER").context("REDIS_SERVER isn't set")?;
    Ok(Plan::new(program.as_ref()))
}

fn with_module() -> Result<Plan> {
    let module = env::var_os("REDIS_LOCK_MODULE").context("REDIS_LOCK_MODULE isn't set")?;
    Ok(Plan {
        module: Some(module.into()),
        ..bare()?
    })
}
