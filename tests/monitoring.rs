//! monitoring/ with the programs that it is for: Prometheus's exporter for Redis and promtool, from PATH or
//! as PROMETHEUS_REDIS_EXPORTER and PROMTOOL name them. `make test-monitoring` runs this.

mod support;

use std::env;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use support::{eventually, free_port, server_with_holder, Expect, Server, LONG, PATIENCE};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[track_caller]
fn program(variable: &str, names: &[&str]) -> PathBuf {
    if let Some(program) = env::var_os(variable) {
        return program.into();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let found = names.iter().find_map(|name| {
        let mut places = env::split_paths(&path).map(|folder| folder.join(name));
        places.find(|place| place.is_file())
    });
    found.unwrap_or_else(|| panic!("none of {names:?} in PATH, nor {variable}"))
}

/// The exporter, for a server, as an ACL user with the rights that docs/operations.md gives it.
struct Exporter {
    child: Child,
    port: u16,
}

impl Exporter {
    /// As docs/operations.md says.
    #[track_caller]
    fn start(server: &Server) -> Exporter {
        let script = root().join("monitoring/redis-lock.lua");
        let script = script.to_str().expect("a path in UTF-8");
        Exporter::with(server, &["-script", script])
    }

    #[track_caller]
    fn with(server: &Server, options: &[&str]) -> Exporter {
        let operations = root().join("docs/operations.md");
        let text = std::fs::read_to_string(operations).expect("a document");
        let (_, rest) = text
            .split_once("> ACL SETUSER exporter ")
            .expect("a recipe");
        let rules = rest.lines().next().expect("rules");
        server.call(format!("ACL SETUSER exporter {rules}")).okay();
        let program = program(
            "PROMETHEUS_REDIS_EXPORTER",
            &["prometheus-redis-exporter", "redis_exporter"],
        );
        let port = free_port();
        let child = Command::new(program)
            .arg(format!("-redis.addr=redis://127.0.0.1:{}", server.port()))
            .args(["-redis.user=exporter", "-redis.password=secret"])
            .arg(format!("-web.listen-address=127.0.0.1:{port}"))
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the exporter runs");
        Exporter { child, port }
    }

    /// What it exports now.
    #[track_caller]
    fn metrics(&self) -> String {
        eventually("the exporter answers", || {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).ok()?;
            stream.set_read_timeout(Some(PATIENCE)).ok()?;
            let request = "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";
            stream.write_all(request.as_bytes()).ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).ok()?;
            answer.starts_with("HTTP/1.0 200").then_some(answer)
        })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The value of a metric, by its name with its labels.
#[track_caller]
fn value(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    let value = line.unwrap_or_else(|| panic!("no {name} in\n{metrics}"));
    value.trim().parse().expect("a number")
}

#[test]
fn the_exporter_passes_the_fields_of_info() {
    let server = server_with_holder();
    let _waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let metrics = Exporter::start(&server).metrics();
    for (field, expected) in [
        ("lock_locks", 1.0),
        ("lock_waiters", 1.0),
        ("lock_grants", 1.0),
    ] {
        let name = format!("redis_script_values{{key=\"{field}\"}}");
        assert_eq!(value(&metrics, &name), expected, "{field}");
    }
    assert_eq!(value(&metrics, "redis_up"), 1.0);
    // What the dashboard and the alerts ask for besides.
    let calls = "redis_commands_total{cmd=\"lock.acquire\"}";
    assert_eq!(value(&metrics, calls), 1.0);
    assert!(metrics.contains("redis_commands_duration_seconds_total{cmd=\"lock.acquire\"}"));
    assert!(metrics.contains("maxmemory_policy=\"noeviction\""));
}

#[test]
fn without_its_script_the_exporter_passes_no_field_of_the_module() {
    let server = server_with_holder();
    let metrics = Exporter::with(&server, &[]).metrics();
    assert_eq!(value(&metrics, "redis_up"), 1.0);
    assert!(!metrics.contains("lock_locks"), "{metrics}");
}

#[test]
fn from_a_server_without_the_module_the_exporter_passes_no_field_of_it() {
    let server = Server::builder().without_module().start();
    let metrics = Exporter::start(&server).metrics();
    assert_eq!(value(&metrics, "redis_up"), 1.0);
    assert!(!metrics.contains("redis_script_values{"), "{metrics}");
}

#[track_caller]
fn promtool(words: &[&str]) -> String {
    let output = Command::new(program("PROMTOOL", &["promtool"]))
        .args(words)
        .current_dir(root())
        .output()
        .expect("promtool runs");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

#[test]
fn the_alert_rules_are_rules() {
    let said = promtool(&["check", "rules", "monitoring/alerts.yml"]);
    assert!(said.contains("9 rules found"), "{said}");
}

#[test]
fn each_alert_fires_for_what_it_is_about() {
    promtool(&["test", "rules", "tests/monitoring/alerts_test.yml"]);
}
