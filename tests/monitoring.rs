//! The files in monitoring/ with their programs: Prometheus's exporter for Redis, and promtool. The
//! programs come from PROMETHEUS_REDIS_EXPORTER and PROMTOOL, or from PATH.
//! `make test-monitoring` runs this.

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

/// An exporter of one server. Its ACL user has the rights that docs/operate/monitor.md gives it.
struct Exporter {
    child: Child,
    port: u16,
}

impl Exporter {
    /// Starts the exporter with the options of docs/operate/monitor.md.
    #[track_caller]
    fn start(server: &Server) -> Exporter {
        let script = root().join("monitoring/redis-lock.lua");
        let script = script.to_str().expect("a path in UTF-8");
        Exporter::with(server, &["-script", script])
    }

    #[track_caller]
    fn with(server: &Server, options: &[&str]) -> Exporter {
        let page = root().join("docs/operate/monitor.md");
        let text = std::fs::read_to_string(page).expect("a document");
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

    /// Returns the metrics that the exporter exports now.
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

/// Returns the value of a metric, by its name with its labels.
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
    let exporter = Exporter::start(&server);
    let metrics = exporter.metrics();
    for (field, expected) in [
        ("lock_locks", 1.0),
        ("lock_waiters", 1.0),
        ("lock_grants", 1.0),
    ] {
        let name = format!("redis_script_values{{key=\"{field}\"}}");
        assert_eq!(value(&metrics, &name), expected, "{field}");
    }
    // Each number of a histogram is a value of its own.
    server.call("LOCK.RELEASE k a").int();
    let later = exporter.metrics();
    for part in ["le_10000", "le_inf", "count"] {
        let name = format!("redis_script_values{{key=\"lock_wait_ms_{part}\"}}");
        assert_eq!(value(&metrics, &name), 0.0, "{part}");
        assert_eq!(value(&later, &name), 1.0, "{part}");
    }
    assert_eq!(value(&metrics, "redis_up"), 1.0);
    // The first recipe gives no right to LOCK.HOT.
    assert!(!metrics.contains("lock_hot_"), "{metrics}");
    // The dashboard and the alerts also query these.
    let calls = "redis_commands_total{cmd=\"lock.acquire\"}";
    assert_eq!(value(&metrics, calls), 1.0);
    assert!(metrics.contains("redis_commands_duration_seconds_total{cmd=\"lock.acquire\"}"));
    assert!(metrics.contains("maxmemory_policy=\"noeviction\""));
}

#[test]
fn the_exporter_passes_the_hottest_locks() {
    let server = server_with_holder();
    server.call("LOCK.ACQUIRE k b").nil();
    let exporter = Exporter::start(&server);
    let page = root().join("docs/operate/monitor.md");
    let text = std::fs::read_to_string(page).expect("a document");
    let mut recipes = text
        .lines()
        .filter_map(|line| line.strip_prefix("> ACL SETUSER exporter "));
    let rules = recipes.nth(1).expect("a second recipe");
    server.call(format!("ACL SETUSER exporter {rules}")).okay();
    let metrics = exporter.metrics();
    for (field, expected) in [("1_refused", 1.0), ("1_waiters", 0.0), ("5_refused", 0.0)] {
        let name = format!("redis_script_values{{key=\"lock_hot_{field}\"}}");
        assert_eq!(value(&metrics, &name), expected, "{field}");
    }
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

/// Returns the queries of the dashboard and of docs/operate/monitor.md for lengths of waits and holds,
/// over 5 minutes. Each comes with its histogram and its statistic.
fn queries_of_lengths() -> Vec<(String, String, Of)> {
    let of_dashboard = queries_of_the_dashboard().into_iter();
    of_dashboard
        .chain(queries_of_the_document())
        .filter_map(|query| {
            let of = Of::query(&query)?;
            let (_, rest) = query.split_once("lock_")?;
            let (field, _) = rest.split_once("_ms_")?;
            Some((format!("lock_{field}_ms"), query, of))
        })
        .collect()
}

fn queries_of_the_dashboard() -> Vec<String> {
    let path = root().join("monitoring/grafana-dashboard.json");
    let text = std::fs::read_to_string(path).expect("a dashboard");
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let queries = targets.map(|target| target["expr"].as_str().expect("a query"));
    queries
        .map(|query| query.replace("$instance", ".*"))
        .map(|query| query.replace("$__rate_interval", "5m"))
        .collect()
}

fn queries_of_the_document() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("docs/operate/monitor.md")).expect("a document");
    let blocks = text.split("```promql\n").skip(1);
    let queries = blocks.map(|block| block.split("```").next().expect("a query"));
    queries
        .map(|query| query.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

/// The statistic that a query computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Half,
    NinetyNine,
    Mean,
}

impl Of {
    fn query(query: &str) -> Option<Of> {
        if query.starts_with("histogram_quantile(0.5,") {
            Some(Of::Half)
        } else if query.starts_with("histogram_quantile(0.99,") {
            Some(Of::NinetyNine)
        } else {
            query.contains("_ms_sum").then_some(Of::Mean)
        }
    }
}

/// Returns input series under the exporter's names for the numbers of a histogram. They start with
/// a million waits of 1 ms. Each minute adds 50 waits of up to 10 ms and 50 of up to 200 ms: 8 s in
/// total.
#[track_caller]
fn series(metrics: &str, histogram: &str) -> String {
    let start = format!("redis_script_values{{key=\"{histogram}_");
    let names = metrics.lines().filter_map(|line| line.strip_prefix(&start));
    let parts: Vec<&str> = names.filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(parts.len(), 19, "{histogram}: {parts:?}");
    let line = |part: &&str| {
        let bound: Option<f64> = part
            .strip_prefix("le_")
            .map(|bound| bound.parse().expect("a bound"));
        let a_minute = match bound {
            Some(bound) if bound < 10.0 => 0,
            Some(bound) if bound < 200.0 => 50,
            None if *part == "sum" => 8_000,
            Some(_) | None => 100,
        };
        format!(
            "      - series: redis_script_values{{instance=\"a\", key=\"{histogram}_{part}\"}}\n        \
             values: 1000000+{a_minute}x60\n"
        )
    };
    parts.iter().map(line).collect()
}

#[test]
fn the_quantiles_of_a_period_are_computed_from_the_exporters_buckets() {
    let server = Server::start();
    let metrics = Exporter::start(&server).metrics();
    let histograms = ["lock_wait_ms", "lock_hold_ms", "lock_lost_hold_ms"];
    let series: String = histograms.map(|it| series(&metrics, it)).concat();
    let queries = queries_of_lengths();
    for of in [Of::Half, Of::NinetyNine, Of::Mean] {
        for histogram in histograms {
            let asked =
                |(field, _, is_of): &&(String, String, Of)| field == histogram && *is_of == of;
            assert!(
                queries.iter().any(|query| asked(&query)),
                "{of:?} of {histogram}"
            );
        }
    }
    let test = |(_, query, of): &(String, String, Of)| {
        let value = match of {
            Of::Half => 10,
            Of::NinetyNine => 198,
            Of::Mean => 80,
        };
        let query = format!("round({query}, 0.001)").replace('\'', "''");
        format!(
            "      - expr: '{query}'\n        eval_time: 50m\n        exp_samples:\n          - labels: \
             '{{instance=\"a\"}}'\n            value: {value}\n"
        )
    };
    let tests: String = queries.iter().map(test).collect();
    let file = server.dir().join("histograms_test.yml");
    let text = format!(
        "evaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n{series}    \
         promql_expr_test:\n{tests}"
    );
    std::fs::write(&file, text).expect("a file");
    promtool(&["test", "rules", file.to_str().expect("a path in UTF-8")]);
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
