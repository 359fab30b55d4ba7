//! The workflows of the hosted CI, which run elsewhere: their form, and what they call.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use saphyr::{LoadableYamlNode, Yaml};
use support::files::files_below;

use crate::{root, text_of};

/// Returns the text of all workflows, by their paths.
fn workflows() -> Vec<(String, String)> {
    let files = files_below(".github/workflows").into_iter();
    let workflows: Vec<_> = files.map(|file| (file.clone(), text_of(&file))).collect();
    assert!(workflows.len() >= 2, "{workflows:?}");
    workflows
}

/// Returns the jobs of a workflow by their names, without those that are a whole workflow.
#[track_caller]
fn jobs<'a>(workflow: &'a Yaml<'a>) -> Vec<(&'a Yaml<'a>, &'a Yaml<'a>)> {
    let jobs = workflow["jobs"].as_mapping().expect("jobs").iter();
    jobs.filter(|(_, job)| job.as_mapping_get("uses").is_none())
        .collect()
}

/// Returns the steps of all jobs of a workflow.
#[track_caller]
fn steps<'a>(workflow: &'a Yaml<'a>) -> Vec<&'a Yaml<'a>> {
    let jobs = jobs(workflow).into_iter();
    let steps = jobs.map(|(_, job)| job["steps"].as_vec().expect("steps"));
    steps.flatten().collect()
}

/// Returns the value of a key in each step that has it.
fn values(workflow: &Yaml<'_>, key: &str) -> Vec<String> {
    let steps = steps(workflow).into_iter();
    let values = steps.filter_map(|step| step.as_mapping_get(key)?.as_str());
    values.map(str::to_owned).collect()
}

fn parsed(text: &str) -> Yaml<'_> {
    Yaml::load_from_str(text).expect("YAML").swap_remove(0)
}

#[test]
fn the_workflows_parse_and_each_job_says_where_and_how_long_it_runs() {
    for (file, text) in workflows() {
        let workflow = parsed(&text);
        for (name, job) in jobs(&workflow) {
            let says = |key| job.as_mapping_get(key).is_some();
            assert!(
                says("runs-on") && says("timeout-minutes"),
                "{file}: {name:?}"
            );
        }
        for step in steps(&workflow) {
            let does = ["run", "uses"].map(|key| step.as_mapping_get(key).is_some());
            assert!(does[0] != does[1], "{file}: {step:?}");
        }
    }
}

#[test]
fn actions_are_pinned_to_commits() {
    for (file, text) in workflows() {
        let actions = values(&parsed(&text), "uses");
        assert!(!actions.is_empty(), "{file}");
        for action in actions {
            let (_, version) = action.split_once('@').expect("a version");
            let is_commit = version.len() == 40 && version.bytes().all(|it| it.is_ascii_hexdigit());
            assert!(is_commit, "{file}: {action}");
        }
    }
}

/// Returns the targets of the `make` calls in these commands.
fn targets(commands: &[String]) -> BTreeSet<String> {
    let lines = commands.iter().flat_map(|command| command.lines());
    let calls = lines.filter_map(|line| line.strip_prefix("make "));
    let words = calls.flat_map(|call| call.split(' '));
    words
        .filter(|word| !word.contains('='))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_hosted_ci_runs_what_ci_runs_and_targets_that_exist() {
    let makefile = text_of("Makefile");
    for (file, text) in workflows() {
        let commands = values(&parsed(&text), "run");
        let called = targets(&commands);
        assert!(!called.is_empty(), "{file}");
        for target in called {
            let is_there = makefile.contains(&format!("\n{target}:"));
            assert!(is_there, "{file} calls make {target}");
        }
        for (tier, workflow) in [("run", "/ci.yml"), ("nightly", "/nightly.yml")] {
            let command = format!("bash .ci/{tier}");
            let runs_tier = commands.iter().any(|it| it.starts_with(&command));
            assert_eq!(runs_tier, file.ends_with(workflow), "{file}");
        }
    }
    assert!(root().join(".ci/run").exists());
}

/// Returns the names of the stages that `.ci/nightly --list` prints.
fn stages() -> BTreeSet<String> {
    let mut command = Command::new("bash");
    let command = command.args([".ci/nightly", "--list"]).current_dir(root());
    let list = command.output().expect("the list of the stages");
    let list = String::from_utf8(list.stdout).expect("UTF-8");
    let lines = list.lines().filter(|line| !line.starts_with(' '));
    lines
        .filter_map(|line| Some(line.split_once(' ')?.0.to_owned()))
        .collect()
}

#[test]
fn the_hosted_ci_runs_each_stage_of_the_night_once() {
    let text = text_of(".github/workflows/nightly.yml");
    let workflow = parsed(&text);
    let jobs = workflow["jobs"]["stages"]["strategy"]["matrix"]["stages"].as_vec();
    let jobs = jobs
        .expect("jobs with stages")
        .iter()
        .filter_map(Yaml::as_str);
    let called: Vec<String> = jobs
        .flat_map(|job| job.split(' ').map(str::to_owned))
        .collect();
    assert_eq!(called.len(), stages().len(), "{called:?}");
    assert_eq!(BTreeSet::from_iter(called), stages());
}

/// Runs a step of CI that prints some lines and fails. Returns the last lines of its output.
fn end_of_failed_step(printed: &str, command: &str) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    fs::write(&log, printed).expect("a log");
    let step = format!(". .ci/steps; make() {{ cat '{}'; false; }}; timeout() {{ shift 2; \"$@\"; }}; step 60 {command}", log.display());
    let mut bash = Command::new("bash");
    let bash = bash
        .args(["-euo", "pipefail", "-c", &step])
        .current_dir(root());
    let output = bash
        .env("CARGO_TARGET_DIR", folder.path())
        .output()
        .expect("bash");
    assert!(!output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let (_, end) = text
        .split_once("=== FAILED: ")
        .expect("the end of a failed step");
    end.lines().map(str::to_owned).collect()
}

#[test]
fn a_step_that_fails_names_the_tests_and_how_to_repeat_each_alone() {
    let rows: &[(&str, &str, &[&str])] = &[
        (
            "        PASS [   0.1s] (1/3) redis-lock::kinds data::a\n\
             \x20       FAIL [   0.5s] (2/3) redis-lock::waiting queue::b\n\
             \x20    SIGABRT [   1.5s] (3/3) redis-lock-core::lock_table cost::c\n\
             \x20    Summary [   2.0s] 3 tests run: 1 passed, 2 failed\n\
             \x20       FAIL [   0.5s] (2/3) redis-lock::waiting queue::b\n",
            "make test",
            &[
                "redis-lock-core::lock_table cost::c",
                "    make test ONLY='binary_id(redis-lock-core::lock_table) & test(=cost::c)'",
                "redis-lock::waiting queue::b",
                "    make test ONLY='binary_id(redis-lock::waiting) & test(=queue::b)'",
            ],
        ),
        (
            "test go | Redis 7.0.15 | a ... ok\ntest go | Redis 7.0.15 cluster | b      ... FAILED\n",
            "make test-clients PARTS=rows",
            &[
                "go | Redis 7.0.15 cluster | b",
                "    make test-clients ROW='go | Redis 7.0.15 cluster | b'",
            ],
        ),
        (
            "Redis 8.6.3    seed 17            900 commands      90/s  FAILED\n",
            "make fuzz SECONDS=10",
            &["Redis 8.6.3   ", "    make fuzz SEED=17"],
        ),
        (
            "error: no such file\n",
            "make check",
            &["Repeat: make check"],
        ),
    ];
    for (printed, command, end) in rows {
        let said = end_of_failed_step(printed, command);
        assert_eq!(said[0], *command);
        assert_eq!(said[1..], **end, "{command}");
    }
}

#[test]
fn contributors_are_told_when_to_run_each_stage() {
    let page = text_of("CONTRIBUTING.md");
    let (_, table) = page.split_once("| you change | stages |").expect("a table");
    for stage in stages() {
        assert!(table.contains(&format!("`{stage}`")), "no {stage}");
    }
}

#[test]
fn a_release_is_published_after_the_stages_of_the_night() {
    let text = text_of(".github/workflows/release.yml");
    let workflow = parsed(&text);
    let nightly = workflow["jobs"]["nightly"]["uses"].as_str();
    assert_eq!(nightly, Some("./.github/workflows/nightly.yml"));
    let needs = workflow["jobs"]["publish"]["needs"].as_vec().expect("jobs");
    assert!(needs.iter().any(|job| job.as_str() == Some("nightly")));
}

#[test]
fn the_dockerfile_calls_targets_that_exist() {
    let makefile = text_of("Makefile");
    let dockerfile = text_of("Dockerfile");
    let commands = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("RUN "));
    let commands: Vec<String> = commands.map(str::to_owned).collect();
    let called = targets(&commands);
    assert_eq!(called.len(), 3, "{called:?}");
    for target in called {
        assert!(makefile.contains(&format!("\n{target}:")), "make {target}");
    }
}

#[test]
fn the_release_is_built_for_tags_that_name_a_version() {
    let text = text_of(".github/workflows/release.yml");
    let workflow = parsed(&text);
    let tags = workflow["on"]["push"]["tags"].as_vec().expect("tags");
    assert_eq!(
        tags.iter().filter_map(Yaml::as_str).collect::<Vec<_>>(),
        ["v*"]
    );
    let built = values(&workflow, "run");
    for target in ["make release", "make checksums"] {
        let call = format!("{target} TAG=\"$GITHUB_REF_NAME\"");
        let called = built.iter().any(|command| command.starts_with(&call));
        assert!(called, "no {call} in {built:?}");
    }
}
