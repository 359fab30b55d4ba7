//! The workflows of the hosted CI, which run elsewhere: their form, and what they call.

use std::collections::BTreeSet;

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

/// Returns the steps of all jobs of a workflow.
#[track_caller]
fn steps<'a>(workflow: &'a Yaml<'a>) -> Vec<&'a Yaml<'a>> {
    let jobs = workflow["jobs"].as_mapping().expect("jobs");
    let steps = jobs
        .values()
        .map(|job| job["steps"].as_vec().expect("steps"));
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
        for (name, job) in workflow["jobs"].as_mapping().expect("jobs") {
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
        assert!(called.len() >= 2, "{file}: {called:?}");
        for target in called {
            let is_there = makefile.contains(&format!("\n{target}:"));
            assert!(is_there, "{file} calls make {target}");
        }
        let runs_ci = commands.iter().any(|command| command == "bash .ci/run");
        assert_eq!(runs_ci, file.ends_with("/ci.yml"), "{file}");
    }
    assert!(root().join(".ci/run").exists());
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
    let release = "make release TAG=\"$GITHUB_REF_NAME\"";
    assert!(built.iter().any(|command| command == release), "{built:?}");
}
