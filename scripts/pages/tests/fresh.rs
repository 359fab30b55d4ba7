//! Agreement of the pages with the module.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use redis_lock_pages::{commands, stale, Command};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the server program that the tests start.
fn server() -> PathBuf {
    env::var_os("REDIS_SERVER").map_or_else(|| "redis-server".into(), PathBuf::from)
}

/// Returns the module that the server loads.
fn module() -> PathBuf {
    let built = format!("target/release/libredis_lock{}", env::consts::DLL_SUFFIX);
    env::var_os("REDIS_LOCK_MODULE").map_or_else(|| root().join(built), PathBuf::from)
}

fn told() -> Result<Vec<Command>> {
    commands(&server(), &module())
}

#[test]
fn the_pages_say_what_the_module_says() -> Result<()> {
    let stale = stale(&root().join("docs"), &told()?)?;
    let names: Vec<&PathBuf> = stale.keys().collect();
    assert!(names.is_empty(), "stale, run `make pages`: {names:?}");
    Ok(())
}

#[test]
fn a_page_that_says_something_else_is_found() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let copy = folder.path();
    std::fs::create_dir(copy.join("commands"))?;
    let pages = std::fs::read_dir(root().join("docs/commands"))?;
    let pages = pages.map(|page| Ok(Path::new("commands").join(page?.file_name())));
    let pages: Result<Vec<PathBuf>> = pages.collect();
    let whole = ["commands.md", "commands.json"].map(PathBuf::from);
    for name in pages?.iter().chain(&whole) {
        std::fs::copy(root().join("docs").join(name), copy.join(name))?;
    }
    let told = told()?;
    assert!(stale(copy, &told)?.is_empty());
    let json = copy.join("commands.json");
    std::fs::remove_file(&json)?;
    let page = copy.join("commands/wait.md");
    let text = std::fs::read_to_string(&page)?;
    std::fs::write(&page, text.replace("[BLOCK ms]", "[BLOCK s]"))?;
    let found: Vec<PathBuf> = stale(copy, &told)?.into_keys().collect();
    assert_eq!(found, [page, json]);
    Ok(())
}

#[test]
fn each_command_has_one_page() -> Result<()> {
    let told = told()?;
    let named = told.iter().map(|command| {
        let word = command.name().trim_start_matches("LOCK.").to_lowercase();
        format!("{word}.md")
    });
    let entries = std::fs::read_dir(root().join("docs/commands"))?;
    let there = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let there: Result<BTreeSet<String>> = there.collect();
    assert_eq!(there?, named.collect());
    Ok(())
}

/// Compares the types among a page's facts with those in its table of replies.
#[test]
fn the_facts_name_the_types_of_the_replies() -> Result<()> {
    for command in told()? {
        let word = command.name().trim_start_matches("LOCK.").to_lowercase();
        let page = root().join(format!("docs/commands/{word}.md"));
        let page = std::fs::read_to_string(page)?;
        let fact = page.lines().find_map(|line| {
            let types = line.strip_prefix("| Replies | [")?;
            types.strip_suffix("](#reply) |")
        });
        let named: BTreeSet<&str> = fact.context("no replies")?.split(", ").collect();
        let (_, section) = page.split_once("\n## Reply\n").context("no table")?;
        let section = section.split("\n#").next().unwrap_or_default();
        let links = section.split('[').skip(1);
        let links = links.filter_map(|link| link.split_once(']'));
        let types: BTreeSet<&str> = links
            .map(|(name, _)| name)
            .filter(|name| name.ends_with(" reply"))
            .collect();
        assert_eq!(named, types, "{}", command.name());
    }
    Ok(())
}

/// Redis before 7.2 puts a module's commands into no category.
#[test]
fn the_categories_are_those_of_the_server() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let plan = redis_lock_rig::Plan {
        module: Some(module()),
        ..redis_lock_rig::Plan::new(&server())
    };
    let process = redis_lock_rig::Process::start(plan, folder.path())?;
    let client = redis::Client::open(("127.0.0.1", process.port()))?;
    let mut client = client.get_connection()?;
    for command in told()? {
        let info: Vec<Vec<redis::Value>> = redis::cmd("COMMAND")
            .arg("INFO")
            .arg(command.name())
            .query(&mut client)?;
        let of_the_server = info.first().and_then(|info| info.get(6));
        let of_the_server = of_the_server.context("no categories")?.clone();
        let of_the_server: BTreeSet<String> = redis::from_redis_value(of_the_server)?;
        if !of_the_server.is_empty() {
            let told: BTreeSet<String> = command.categories().into_iter().map(Into::into).collect();
            assert_eq!(told, of_the_server, "{}", command.name());
        }
    }
    Ok(())
}
