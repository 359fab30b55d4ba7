//! One build of the core's tests with all mutants that compile.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{bail, ensure, Context, Result};
use serde::Deserialize;

use crate::listed::Mutant;
use crate::rewrite::{constants, rewrite, Number, Rewritten};

/// The module that chooses a mutant.
const SWITCH: &str = include_str!("switch.rs");
/// Attributes for the compiler's function that tells apart constants and calls at run time.
const FEATURES: &str = "#![feature(core_intrinsics, const_eval_select)]\n";
const LIB: &str = "core/src/lib.rs";

/// A copy of the core in a workspace of its own.
pub struct Copied {
    root: PathBuf,
    /// The files of core/src.
    sources: Vec<PathBuf>,
    target: PathBuf,
    /// The names of the mutants that didn't compile last time, one a line. Most won't again, so
    /// fewer builds are in vain.
    known: PathBuf,
}

/// The test programs, and the mutants that are not in them because they don't compile.
pub struct Built {
    pub programs: Vec<PathBuf>,
    pub left_out: BTreeSet<Number>,
}

impl Copied {
    /// Copies the core of the clone in the current directory as it is now, except its sources.
    pub fn new(folder: &Path) -> Result<Self> {
        let root = folder.join("copy");
        let listed = Command::new("git")
            .args(["ls-files", "-z", "Cargo.lock", "core", "tests/promises"])
            .output()?;
        ensure!(listed.status.success(), "git ls-files failed");
        let listed = String::from_utf8(listed.stdout)?;
        let listed = listed.split_terminator('\0').map(PathBuf::from);
        let (sources, others): (Vec<_>, Vec<_>) =
            listed.partition(|file| file.starts_with("core/src"));
        for file in others {
            write_if_other(&root.join(&file), &fs::read(file)?)?;
        }
        let manifest = fs::read_to_string("Cargo.toml")?;
        write_if_other(&root.join("Cargo.toml"), workspace(&manifest)?.as_bytes())?;
        Ok(Self {
            root,
            sources,
            target: folder.join("target"),
            known: folder.join("left-out"),
        })
    }

    /// Returns the directory in which the core's tests run.
    pub fn core(&self) -> PathBuf {
        self.root.join("core")
    }

    /// Builds the tests. Leaves out the mutants that the compiler refuses.
    pub fn build(&self, mutants: &[Mutant]) -> Result<Built> {
        let mut left_out = self.known(mutants);
        loop {
            let files = self.write(mutants, &left_out)?;
            let (_, errors) = self.cargo(&["check", "--lib"])?;
            if errors.is_empty() {
                break;
            }
            let before = left_out.len();
            for error in &errors {
                left_out.extend(error.mutants(&files));
            }
            if left_out.len() == before {
                let errors: Vec<_> = errors.into_iter().map(|error| error.rendered).collect();
                bail!("the core doesn't compile:\n{}", errors.join("\n"));
            }
            eprintln!("{} mutants don't compile", left_out.len());
        }
        let names = left_out
            .iter()
            .map(|number| format!("{}\n", mutants[number - 1].name));
        fs::write(&self.known, names.collect::<String>())?;
        let (programs, errors) = self.cargo(&["test", "--lib", "--tests", "--no-run"])?;
        ensure!(errors.is_empty(), "the tests don't compile");
        Ok(Built { programs, left_out })
    }

    fn known(&self, mutants: &[Mutant]) -> BTreeSet<Number> {
        let known = fs::read_to_string(&self.known).unwrap_or_default();
        let known: BTreeSet<&str> = known.lines().collect();
        let numbered = (1..).zip(mutants);
        let left_out = numbered.filter(|(_, mutant)| known.contains(mutant.name.as_str()));
        left_out.map(|(number, _)| number).collect()
    }

    /// Writes the files of the core with their mutants.
    fn write(
        &self,
        mutants: &[Mutant],
        left_out: &BTreeSet<Number>,
    ) -> Result<HashMap<PathBuf, Rewritten>> {
        let mut by_file: BTreeMap<&Path, Vec<(Number, &Mutant)>> = BTreeMap::new();
        for file in &self.sources {
            by_file.insert(file, Vec::new());
        }
        for (index, mutant) in mutants.iter().enumerate() {
            let of_file = by_file.entry(&mutant.file).or_default();
            if !left_out.contains(&(index + 1)) {
                of_file.push((index + 1, mutant));
            }
        }
        let mut names = BTreeSet::new();
        for (file, mutants) in &by_file {
            names.extend(constants(&fs::read_to_string(file)?, mutants)?);
        }
        let mut files = HashMap::new();
        for (file, mutants) in by_file {
            let text = fs::read_to_string(file)?;
            let rewritten =
                rewrite(&text, &mutants, &names).with_context(|| file.display().to_string())?;
            let text = match file == Path::new(LIB) {
                true => format!("{FEATURES}{}{SWITCH}", rewritten.text),
                false => rewritten.text.clone(),
            };
            write_if_other(&self.root.join(file), text.as_bytes())?;
            files.insert(file.to_owned(), rewritten);
        }
        Ok(files)
    }

    /// Runs cargo in the copy. Returns the test programs that it built, and the errors.
    fn cargo(&self, command: &[&str]) -> Result<(Vec<PathBuf>, Vec<CompileError>)> {
        let mut cargo = Command::new("cargo")
            .args(command)
            .args([
                "--package",
                "redis-lock-core",
                "--offline",
                "--message-format=json",
            ])
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("RUSTC_BOOTSTRAP", "redis_lock_core")
            .env("RUSTFLAGS", "--cap-lints=allow")
            .stdout(Stdio::piped())
            .spawn()?;
        let (mut programs, mut errors) = (Vec::new(), Vec::new());
        let output = cargo.stdout.take().context("cargo's output")?;
        for line in BufReader::new(output).lines() {
            let line: Line = serde_json::from_str(&line?)?;
            programs.extend(line.executable);
            errors.extend(line.message.filter(CompileError::is_error));
        }
        let is_built = cargo.wait()?.success();
        ensure!(is_built || !errors.is_empty(), "cargo failed");
        Ok((programs, errors))
    }
}

/// Makes the manifest of a workspace that has only the core.
fn workspace(manifest: &str) -> Result<String> {
    let shared = manifest
        .split("\n[")
        .filter(|section| section.starts_with("workspace."));
    let shared: Vec<_> = shared.map(|section| format!("\n[{section}")).collect();
    ensure!(!shared.is_empty(), "Cargo.toml has no [workspace.package]");
    Ok(format!(
        "[workspace]\nmembers = [\"core\", \"tests/promises\"]\nresolver = \"2\"\n{}\n{PROFILE}",
        shared.concat()
    ))
}

/// The profile of the tests. Time to compile counts once, time to run for each mutant.
const PROFILE: &str = r#"
[profile.dev]
opt-level = 1
debug = false
incremental = false

[profile.dev.package."*"]
opt-level = 2

[profile.dev.build-override]
debug = false
"#;

/// Leaves a file as it is if that is its text, so cargo doesn't build it again.
fn write_if_other(path: &Path, text: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().context("a folder")?)?;
    fs::write(path, text).with_context(|| path.display().to_string())
}

/// A line of cargo's output.
#[derive(Deserialize)]
struct Line {
    executable: Option<PathBuf>,
    message: Option<CompileError>,
}

#[derive(Deserialize)]
struct CompileError {
    level: String,
    rendered: String,
    spans: Vec<ErrorSpan>,
}

#[derive(Deserialize)]
struct ErrorSpan {
    file_name: PathBuf,
    byte_start: usize,
    is_primary: bool,
}

impl CompileError {
    fn is_error(&self) -> bool {
        self.level == "error" && !self.spans.is_empty()
    }

    /// Returns the mutants that the error is about: those whose text it points to, or those of the
    /// smallest site that it is in. If it points to the type of a function, returns the last mutant
    /// of the site that it mentions besides.
    fn mutants(&self, files: &HashMap<PathBuf, Rewritten>) -> Vec<Number> {
        let primary = self.spans.iter().filter(|span| span.is_primary);
        let found: Vec<Number> = primary.flat_map(|span| span.mutants(files)).collect();
        if !found.is_empty() {
            return found;
        }
        let others = self.spans.iter().filter(|span| !span.is_primary);
        others
            .filter_map(|span| span.mutants(files).pop())
            .collect()
    }
}

impl ErrorSpan {
    fn mutants(&self, files: &HashMap<PathBuf, Rewritten>) -> Vec<Number> {
        let Some(file) = files.get(&self.file_name) else {
            return Vec::new();
        };
        let is_lib = self.file_name == Path::new(LIB);
        let at = self.byte_start - if is_lib { FEATURES.len() } else { 0 };
        let is_in = |range: &Range<usize>| range.contains(&at);
        let mutants = file.mutants.iter().filter(|(range, _)| is_in(range));
        let mutants: Vec<Number> = mutants.map(|(_, number)| *number).collect();
        if !mutants.is_empty() {
            return mutants;
        }
        let sites = file.sites.iter().filter(|(range, _)| is_in(range));
        let smallest = sites.min_by_key(|(range, _)| range.len());
        smallest.map_or(Vec::new(), |(_, numbers)| numbers.clone())
    }
}
