//! The files in monitoring/ use only names that `INFO lock` has. tests/monitoring.rs runs the files
//! with their programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use support::headings::headings;
use support::{server_with_holder, Expect, Server, LONG};

#[track_caller]
fn text_of(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("monitoring")
        .join(name);
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the reply of the exporter's script.
#[track_caller]
fn exported(server: &Server) -> BTreeMap<String, String> {
    let script = text_of("redis-lock.lua");
    let pairs = server.call(&["EVAL", &script, "0"]).list();
    let texts: Vec<String> = pairs.into_iter().map(|it| Ok(it).text()).collect();
    let pairs = texts
        .chunks(2)
        .map(|pair| (pair[0].clone(), pair[1].clone()));
    pairs.collect()
}

#[test]
fn the_script_exports_every_number_of_info_as_it_is() {
    let server = server_with_holder();
    let info = server.call("INFO lock").text();
    let mut numbers = BTreeMap::new();
    for (name, value) in info.lines().filter_map(|line| line.split_once(':')) {
        if value.parse::<f64>().is_ok() {
            numbers.insert(name.to_owned(), value.to_owned());
        }
        for (part, value) in value.split(',').filter_map(|part| part.split_once('=')) {
            numbers.insert(format!("{name}_{part}"), value.to_owned());
        }
    }
    assert!(numbers.len() >= 19 + 3 * 19, "{numbers:?}");
    assert_eq!(numbers["lock_wait_ms_le_inf"], "0");
    let mut exported = exported(&server);
    exported.retain(|name, _| !name.starts_with("lock_hot_"));
    assert_eq!(exported, numbers);
    assert_eq!(numbers["lock_locks"], "1");
}

#[test]
fn the_script_exports_the_hottest_locks_without_their_names() {
    let server = server_with_holder();
    for key in 0..7 {
        let key = format!("secret{key}");
        server.call(format!("LOCK.ACQUIRE {key} a {LONG}")).grant();
        server.call(format!("LOCK.ACQUIRE {key} b")).nil();
    }
    server.call("LOCK.WAIT k b BLOCK 10").nil();
    let hot = |exported: BTreeMap<String, String>| -> BTreeMap<String, String> {
        let exported = exported.into_iter();
        exported
            .filter(|(name, _)| name.starts_with("lock_hot_"))
            .collect()
    };
    let five = hot(exported(&server));
    assert_eq!(five.len(), 5 * 7, "{five:?}");
    assert_eq!(five["lock_hot_1_waits"], "1");
    assert!(five["lock_hot_1_waited_ms"]
        .parse::<u64>()
        .is_ok_and(|ms| ms >= 10));
    assert_eq!(five["lock_hot_5_refused"], "1");
    assert!(!format!("{five:?}").contains("secret"));
    // The number of series doesn't depend on the locks.
    let none = hot(exported(&Server::start()));
    assert!(five.keys().eq(none.keys()));
    assert!(none.values().all(|value| value == "0"));
}

/// A denied command would be in the server's ACL log, at each scrape.
#[test]
fn without_the_right_to_lock_hot_the_script_does_not_try() {
    let server = server_with_holder();
    server
        .call("ACL SETUSER exporter on nopass ~* +info +eval")
        .okay();
    let mut client = server.client();
    client.call("AUTH exporter any").okay();
    let script = text_of("redis-lock.lua");
    let pairs = client.call(&["EVAL", &script, "0"]).list();
    let texts = format!("{pairs:?}");
    assert!(
        texts.contains("lock_locks") && !texts.contains("lock_hot_"),
        "{texts}"
    );
    assert_eq!(server.call("ACL LOG").list(), []);
}

/// Returns the fields that queries select by the label `key`.
fn fields_in(text: &str) -> BTreeSet<String> {
    let text = text.replace("\\\"", "\"");
    let labels = text.split("key=\"").skip(1);
    let fields = labels.filter_map(|rest| rest.split('"').next());
    fields.map(str::to_owned).collect()
}

/// Returns the prefixes of the fields whose buckets are queried.
fn histograms_in(text: &str) -> BTreeSet<String> {
    let text = text.replace("\\\"", "\"");
    let labels = text.split("key=~\"").skip(1);
    let patterns = labels.filter_map(|rest| rest.split('"').next());
    let prefixes = patterns.map(|pattern| pattern.strip_suffix(".*").expect("all buckets"));
    prefixes.map(str::to_owned).collect()
}

#[test]
fn the_dashboard_asks_for_all_buckets_of_each_histogram() {
    let known = exported(&Server::start());
    let asked = histograms_in(&text_of("grafana-dashboard.json"));
    let expected = ["hold_ms", "lost_hold_ms", "wait_ms"].map(|field| format!("lock_{field}_le_"));
    assert_eq!(Vec::from_iter(&asked), Vec::from_iter(&expected));
    for prefix in asked {
        let buckets = known.keys().filter(|name| name.starts_with(&prefix));
        assert_eq!(buckets.count(), 17, "{prefix}");
    }
    // The dashboard shows no quantile of the server's whole life where a histogram has the last
    // minutes. Acknowledgements have none.
    let text = text_of("grafana-dashboard.json");
    let text = text.replace("lock_acknowledge_", "");
    assert!(!text.contains("lock_wait_p99_ms") && !text.contains("lock_hold_max_ms"));
    assert_eq!(text.matches("p99_ms").count(), 1);
}

#[test]
fn alerts_and_dashboard_ask_for_what_is_exported() {
    let server = Server::start();
    let known: BTreeSet<String> = exported(&server).into_keys().collect();
    for (name, least) in [("alerts.yml", 8), ("grafana-dashboard.json", 15)] {
        let asked = fields_in(&text_of(name));
        assert!(asked.len() >= least, "{name}: {asked:?}");
        let unknown: Vec<_> = asked.difference(&known).collect();
        assert!(unknown.is_empty(), "{name} asks for {unknown:?}");
    }
}

/// Returns the text of each alert rule by its name.
fn alerts(text: &str) -> BTreeMap<&str, &str> {
    let rules = text.split("- alert: ").skip(1);
    rules.filter_map(|rule| rule.split_once('\n')).collect()
}

/// Returns the value of an annotation, on the same line or on the next line.
fn annotation<'a>(rule: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = rule.split_once(&format!("\n          {name}: "))?;
    let value = rest.strip_prefix(">-\n").unwrap_or(rest).lines().next()?;
    Some(value.trim())
}

/// The address of the main branch's documents.
const PUBLISHED: &str = "https://github.com/redis-lock/redis-lock/blob/main/";

#[test]
fn each_alert_has_a_description_and_a_runbook() {
    let text = text_of("alerts.yml");
    let alerts = alerts(&text);
    assert!(alerts.len() >= 9, "{alerts:?}");
    for (alert, rule) in alerts {
        let description = annotation(rule, "description").unwrap_or_default();
        assert!(description.contains(' '), "{alert} has no description");
        let runbook = annotation(rule, "runbook_url").unwrap_or_default();
        let place = runbook.strip_prefix(PUBLISHED);
        let place = place.unwrap_or_else(|| panic!("{alert} has no runbook: {runbook}"));
        let (document, heading) = place.split_once('#').expect("a heading");
        assert_eq!(heading, alert.to_lowercase());
        let headings = headings(&Path::new(env!("CARGO_MANIFEST_DIR")).join(document));
        assert!(headings.contains(heading), "no {heading} in {document}");
    }
}

#[test]
fn the_runbook_has_no_alert_that_is_gone() {
    let alerts_text = text_of("alerts.yml");
    let named: BTreeSet<&str> = alerts(&alerts_text).into_keys().collect();
    let runbook = text_of("../docs/operate/troubleshooting.md");
    let (_, section) = runbook.split_once("\n## Alerts\n").expect("a section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let described = section.lines().filter_map(|line| line.strip_prefix("### "));
    assert_eq!(described.collect::<BTreeSet<_>>(), named);
}

#[test]
fn the_dashboard_is_json_with_a_panel_for_each_query() {
    let text = text_of("grafana-dashboard.json");
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    assert!(panels.len() >= 9);
    for panel in panels {
        let targets = panel["targets"].as_array().expect("targets");
        let asks = |target: &serde_json::Value| {
            let query = target["expr"].as_str().unwrap_or_default();
            query.contains("instance=~\"$instance\"")
        };
        assert!(!targets.is_empty() && targets.iter().all(asks), "{panel}");
    }
}
