//! Tests that docs/cli.md and docs/guides/cron.md match the behaviour and the help of `redis-lock`.

mod stage;

use std::fs;
use std::path::Path;

use stage::support::Server;
use stage::{outcome, redis_lock, shell};

/// The separator between the outputs of two lines.
const END: &str = "--- end of the line ---";

/// Returns the page of the command line, and the page about cron jobs.
fn document() -> String {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let pages = ["cli.md", "guides/cron.md"].map(|page| docs.join(page));
    let texts = pages.map(|page| fs::read_to_string(page).expect("a page"));
    texts.concat()
}

/// A typed line, and the lines that the document shows after it.
struct Step<'a> {
    typed: &'a str,
    shown: Vec<&'a str>,
}

/// Returns the examples of a document, each as its steps.
fn examples(document: &str) -> Vec<Vec<Step<'_>>> {
    let blocks = document.split("```console\n").skip(1);
    let block = |text| str::split_once(text, "```").expect("the end of a block").0;
    blocks.map(|text| steps(block(text))).collect()
}

fn steps(block: &str) -> Vec<Step<'_>> {
    let mut steps: Vec<Step<'_>> = Vec::new();
    for line in block.lines() {
        match line.strip_prefix("$ ") {
            Some(typed) => steps.push(Step {
                typed,
                shown: Vec::new(),
            }),
            None => steps
                .last_mut()
                .expect("it begins with what is typed")
                .shown
                .push(line),
        }
    }
    steps
}

/// Returns a line in which all values that differ between runs, and the spaces between columns, are
/// unified.
fn steady(line: &str) -> String {
    let words = line.split_whitespace().map(|word| {
        let bare = word.trim_end_matches(',');
        let digits = bare.bytes().filter(u8::is_ascii_digit).count();
        match bare {
            _ if bare.starts_with("127.0.0.1:") => "ADDRESS".to_owned(),
            _ if bare.len() == 32 && bare.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                "TOKEN".to_owned()
            }
            _ if bare.len() == 16 && digits == 16 => "FENCE".to_owned(),
            _ if digits > 0 && bare.ends_with('s') => "SPAN".to_owned(),
            _ => word.to_owned(),
        }
    });
    words.collect::<Vec<String>>().join(" ")
}

#[test]
fn examples_show_what_happens() {
    let document = document();
    let examples = examples(&document);
    assert!(
        examples.len() >= 7,
        "only {} examples were found",
        examples.len()
    );
    for steps in examples {
        let server = Server::start();
        let lines = steps
            .iter()
            .map(|step| format!("{}\necho '{END}'\n", step.typed));
        let script = format!("exec 2>&1\n{}", lines.collect::<String>());
        let played = outcome(&mut shell(server.port(), &script));
        let outputs: Vec<&str> = played.out.split(&format!("{END}\n")).collect();
        assert_eq!(outputs.len(), steps.len() + 1, "{played:?}");
        for (step, output) in steps.iter().zip(outputs) {
            let output: Vec<String> = output.lines().map(steady).collect();
            let shown: Vec<String> = step.shown.iter().map(|line| steady(line)).collect();
            assert_eq!(output, shown, "{}", step.typed);
        }
    }
}

#[test]
fn the_document_names_the_options_that_exist() {
    let document = document();
    let help = ["run", "ls", "info", "why", "top", "break"]
        .map(|command| outcome(&mut redis_lock(1, &[command, "--help"])).ok());
    let help = help.concat();
    let words =
        document.split(|character: char| !character.is_ascii_alphanumeric() && character != '-');
    let named: Vec<&str> = words
        .filter(|word| word.starts_with("--") && word.len() > 3)
        .collect();
    assert!(named.len() > 30);
    for option in named {
        assert!(help.contains(option) || option == "--release", "{option}");
    }
    // The document names all options of `run`.
    let run = outcome(&mut redis_lock(1, &["run", "--help"])).ok();
    let own = run.split("Server:").next().expect("its own options");
    let own = own
        .split_whitespace()
        .filter(|word| word.starts_with("--") && word.len() > 3);
    for option in own {
        let option = option.trim_end_matches([',', ']', '.']);
        assert!(
            document.contains(option) || ["--timeout", "--nb", "--exclusive"].contains(&option),
            "{option}"
        );
    }
}

#[test]
fn the_document_has_the_codes_that_the_help_has() {
    let document = document();
    let help = outcome(&mut redis_lock(1, &["run", "--help"])).ok();
    for code in ["75", "79", "69"] {
        assert!(document.contains(&format!("| {code} |")), "{code}");
        assert!(help.contains(&format!("\n  {code}   ")), "{code}");
    }
}
