//! One build of a package with all mutants that compile.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::env::{
    self,
    consts::{DLL_PREFIX, DLL_SUFFIX},
};
use std::fs;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use anyhow::{bail, ensure, Context, Result};
use serde::Deserialize;

use crate::listed::Mutant;
use crate::rewrite::{constants, rewrite, Number, Rewritten};
use crate::subject::{Subject, SERVER_TESTS};

/// The module that chooses a mutant.
const SWITCH: &str = include_str!("switch.rs");
/// Attributes for the compiler's function that tells apart constants and calls at run time.
const FEATURES: &str = "#![feature(core_intrinsics, const_eval_select)]\n";

/// A copy of a package in a workspace of its own.
pub struct Copied {
    subject: Subject,
    root: PathBuf,
    sources: Vec<PathBuf>,
    target: PathBuf,
    /// The names of the mutants that didn't compile last time, one a line. Most won't again, so
    /// fewer builds are in vain.
    known: PathBuf,
}

/// The test programs, and the mutants that are not played because they don't compile.
pub struct Built {
    pub programs: Vec<PathBuf>,
    /// The directory in which the programs run.
    pub directory: PathBuf,
    /// The module that the programs load, if they start servers.
    pub module: Option<PathBuf>,
    pub left_out: BTreeSet<Number>,
}

impl Copied {
    /// Copies the package of the clone in the current directory as it is now, except its sources.
    pub fn new(folder: &Path, subject: Subject) -> Result<Self> {
        let root = folder.join("copy");
        let listed = Command::new("git")
            .args(["ls-files", "-z"])
            .args(subject.needs())
            .output()?;
        ensure!(listed.status.success(), "git ls-files failed");
        let listed = String::from_utf8(listed.stdout)?;
        let listed = listed.split_terminator('\0').map(PathBuf::from);
        let (sources, others): (Vec<_>, Vec<_>) =
            listed.partition(|file| file.starts_with(subject.sources()));
        for file in others {
            write_if_other(&root.join(&file), &fs::read(file)?)?;
        }
        let manifest = fs::read_to_string("Cargo.toml")?;
        let manifest = workspace(&manifest, subject)?;
        write_if_other(&root.join("Cargo.toml"), manifest.as_bytes())?;
        Ok(Self {
            subject,
            root,
            sources,
            target: folder.join("target"),
            known: folder.join("left-out"),
        })
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
                left_out.extend(error.mutants(&files, &self.lib()));
            }
            if left_out.len() == before {
                let errors: Vec<_> = errors.into_iter().map(|error| error.rendered).collect();
                bail!(
                    "{} doesn't compile:\n{}",
                    self.subject.package(),
                    errors.join("\n")
                );
            }
            eprintln!("{} mutants don't compile", left_out.len());
        }
        let names = left_out
            .iter()
            .map(|number| format!("{}\n", mutants[number - 1].name));
        fs::write(&self.known, names.collect::<String>())?;
        match self.subject {
            Subject::Core => self.built_core(left_out),
            Subject::Shell => self.built_shell(left_out),
        }
    }

    fn built_core(&self, left_out: BTreeSet<Number>) -> Result<Built> {
        let (programs, errors) = self.cargo(&["test", "--lib", "--tests", "--no-run"])?;
        ensure!(errors.is_empty(), "the tests don't compile");
        Ok(Built {
            programs,
            directory: self.root.join("core"),
            module: None,
            left_out,
        })
    }

    /// Builds the module in the copy. The tests are those of the clone, so they are built after it.
    fn built_shell(&self, left_out: BTreeSet<Number>) -> Result<Built> {
        let (_, errors) = self.cargo(&["build", "--lib"])?;
        ensure!(errors.is_empty(), "the module doesn't link");
        let mut tests = Command::new("cargo");
        tests.args(["test", "--no-run", "--message-format=json"]);
        for name in SERVER_TESTS {
            tests.args(["--test", name]);
        }
        let (programs, errors) = run(&mut tests)?;
        ensure!(errors.is_empty(), "the tests don't compile");
        let file = format!("{DLL_PREFIX}{}{DLL_SUFFIX}", self.subject.library());
        let module = self.target.join("debug").join(file);
        // The tests refuse a module that is older than Cargo.lock, which each run writes.
        let built = fs::File::options().write(true).open(&module)?;
        built.set_modified(SystemTime::now())?;
        Ok(Built {
            programs,
            directory: env::current_dir()?,
            module: Some(module),
            left_out,
        })
    }

    /// Returns the file at the root of the package's library.
    fn lib(&self) -> PathBuf {
        self.subject.sources().join("lib.rs")
    }

    fn known(&self, mutants: &[Mutant]) -> BTreeSet<Number> {
        let known = fs::read_to_string(&self.known).unwrap_or_default();
        let known: BTreeSet<&str> = known.lines().collect();
        let numbered = (1..).zip(mutants);
        let left_out = numbered.filter(|(_, mutant)| known.contains(mutant.name.as_str()));
        left_out.map(|(number, _)| number).collect()
    }

    /// Writes the sources with their mutants.
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
            let text = match file == self.lib() {
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
        let mut cargo = Command::new("cargo");
        cargo
            .args(command)
            .args(["--package", self.subject.package()])
            .args(["--offline", "--message-format=json"])
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("RUSTC_BOOTSTRAP", self.subject.library())
            .env("RUSTFLAGS", "--cap-lints=allow");
        run(&mut cargo)
    }
}

/// Runs cargo. Returns the test programs that it built, and the errors.
fn run(cargo: &mut Command) -> Result<(Vec<PathBuf>, Vec<CompileError>)> {
    let mut cargo = cargo.stdout(Stdio::piped()).spawn()?;
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

/// Makes the manifest of a workspace that has only what the package needs.
fn workspace(manifest: &str, subject: Subject) -> Result<String> {
    let is_needed = |section: &&str| {
        let mut sections = subject.sections().iter();
        sections.any(|beginning| section.starts_with(beginning))
    };
    let shared = manifest.split("\n[").filter(is_needed);
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
    fn mutants(&self, files: &HashMap<PathBuf, Rewritten>, lib: &Path) -> Vec<Number> {
        let primary = self.spans.iter().filter(|span| span.is_primary);
        let found: Vec<Number> = primary.flat_map(|span| span.mutants(files, lib)).collect();
        if !found.is_empty() {
            return found;
        }
        let others = self.spans.iter().filter(|span| !span.is_primary);
        others
            .filter_map(|span| span.mutants(files, lib).pop())
            .collect()
    }
}

impl ErrorSpan {
    fn mutants(&self, files: &HashMap<PathBuf, Rewritten>, lib: &Path) -> Vec<Number> {
        let Some(file) = files.get(&self.file_name) else {
            return Vec::new();
        };
        let is_lib = self.file_name == lib;
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
