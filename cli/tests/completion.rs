//! Tests of the completions: TAB is pressed in the shells themselves.

mod stage;

use std::path::Path;
use std::process::Command;

use stage::terminal::{words, Terminal};
use stage::PROGRAM;

const PROMPT: &str = "ready$ ";

/// The text that is typed before TAB, and the line after it, in every shell.
const COMPLETED: [(&str, &str); 8] = [
    ("redis-lock ru", "redis-lock run"),
    ("redis-lock comp", "redis-lock completions"),
    ("redis-lock run --on-l", "redis-lock run --on-lost"),
    (
        "redis-lock run --on-lost ki",
        "redis-lock run --on-lost kill",
    ),
    ("redis-lock top --sort hol", "redis-lock top --sort holders"),
    ("redis-lock why --waite", "redis-lock why --waiters"),
    ("redis-lock -p 7000 ls --js", "redis-lock -p 7000 ls --json"),
    (
        "redis-lock ls --cacert /etc/nssw",
        "redis-lock ls --cacert /etc/nsswitch.conf",
    ),
];

/// The same, for bash alone.
const COMPLETED_BY_BASH: [(&str, &str); 3] = [
    ("redis-lock completions fi", "redis-lock completions fish"),
    ("redis-lock run k --at-l", "redis-lock run k --at-least"),
    (
        "redis-lock run k -- /etc/nssw",
        "redis-lock run k -- /etc/nsswitch.conf",
    ),
];

/// Starts a shell, and types the lines that load the completions.
#[track_caller]
fn shell(program: &str, options: &[&str], lines: &[&str]) -> Terminal {
    let mut command = words(1, program, options);
    let folder = Path::new(PROGRAM).parent().expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", folder.display()));
    command.env("PS1", PROMPT);
    let mut terminal = Terminal::start(command, 100, 40);
    for line in lines {
        terminal.type_in(&format!("{line}\n"));
    }
    terminal.type_in("clear; echo load''ed\n");
    terminal.until_shown("loaded");
    until_ends(&terminal, PROMPT.trim_end());
    terminal
}

#[track_caller]
fn until_ends(terminal: &Terminal, end: &str) {
    terminal.until_shows(end, |text| text.trim_end_matches([' ', '=']).ends_with(end));
}

#[track_caller]
fn completes(mut terminal: Terminal, lines: &[(&str, &str)]) {
    for (typed, completed) in lines {
        terminal.type_in(&format!("{typed}\t"));
        until_ends(&terminal, &format!("{PROMPT}{completed}"));
        terminal.type_in("\x15");
        until_ends(&terminal, PROMPT.trim_end());
    }
}

fn is_installed(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        eprintln!("{program} isn't installed here");
    }
    found
}

#[test]
fn bash_completes() {
    let lines = ["eval \"$(redis-lock completions bash)\""];
    let terminal = shell("bash", &["--norc", "--noprofile", "-i"], &lines);
    completes(terminal, &[&COMPLETED[..], &COMPLETED_BY_BASH].concat());
}

#[test]
fn zsh_completes() {
    let lines = [
        "autoload -U compinit; compinit -u -D",
        "eval \"$(redis-lock completions zsh)\"",
    ];
    if is_installed("zsh") {
        completes(shell("zsh", &["-f", "-i"], &lines), &COMPLETED);
    }
}

#[test]
fn fish_completes() {
    let lines = [
        "set -g fish_autosuggestion_enabled 0; set -g fish_greeting ''",
        "function fish_prompt; echo -n 'ready$ '; end",
        "redis-lock completions fish | source",
    ];
    if is_installed("fish") {
        completes(
            shell("fish", &["--no-config", "--private", "-i"], &lines),
            &COMPLETED,
        );
    }
}
