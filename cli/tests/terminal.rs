//! Tests of `redis-lock run` as a job of a shell in a terminal.
#![cfg(target_os = "linux")]

mod stage;

use portable_pty::{native_pty_system, PtySize};
use rustix::process::{kill_process, Pid, Signal};
use stage::support::{eventually, server_with_holder, until, Expect, Server};
use stage::terminal::{words, Terminal};
use stage::{child_of, state, PROGRAM};
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// Starts a shell with job control, which shows `ready$ ` when it is ready.
#[track_caller]
fn shell(server: &Server) -> Terminal {
    let mut command = words(server.port(), "bash", &["--norc", "--noprofile", "-i"]);
    let folder = Path::new(PROGRAM).parent().expect("a folder");
    command.env(
        "PATH",
        format!(
            "{}:{}",
            folder.display(),
            std::env::var("PATH").unwrap_or_default()
        ),
    );
    command.env("PS1", "ready$ ");
    let terminal = Terminal::start(command, 100, 40);
    terminal.until_shown("ready$");
    terminal
}

/// Waits for the shell's prompt. Input that is typed before the shell reads again may be discarded.
#[track_caller]
fn until_prompt(terminal: &Terminal, prompt: &str) {
    terminal.until_shows("the prompt", |text| text.trim_end().ends_with(prompt));
}

fn is_held(server: &Server) -> bool {
    server
        .lock_info("k")
        .is_some_and(|lock| !lock.holders.is_empty())
}

/// Returns the process of the command that the shell's only job runs.
fn command(terminal: &Terminal) -> Pid {
    child_of(child_of(terminal.id()))
}

/// Returns the letter of the state of the command that the shell's only job runs.
fn command_state(terminal: &Terminal) -> Option<char> {
    state(command(terminal))
}

#[test]
fn the_command_reads_from_the_terminal() {
    let server = Server::start();
    let mut terminal = shell(&server);
    terminal
        .type_in("redis-lock run k -- sh -c 'read line; echo got=$line; exit 4'; echo code=$?\n");
    until("it is held", || is_held(&server));
    terminal.type_in("hello\n");
    terminal.until_shown("got=hello");
    terminal.until_shown("code=4");
}

#[test]
fn an_interrupt_reaches_the_command_once() {
    let server = Server::start();
    let mut terminal = shell(&server);
    terminal.type_in("redis-lock run k -- sh -c 'trap \"echo interrupt; n=x\\$n\" INT; echo beg\"\"un; until [ \"$n\" ]; do sleep 0.05; done; sleep 0.5; echo n=$n.; exit 4'; echo code=$?\n");
    terminal.until_shown("begun");
    terminal.type_in("\x03");
    terminal.until_shown("n=x.");
    terminal.until_shown("code=4");
    assert!(!is_held(&server));
}

#[test]
fn an_interrupt_ends_command_and_lock() {
    let server = Server::start();
    let mut terminal = shell(&server);
    terminal.type_in("redis-lock run k -- sleep 600; echo code=$?\n");
    until("it is held", || is_held(&server));
    terminal.type_in("\x03");
    until_prompt(&terminal, "ready$");
    terminal.type_in("echo late=$?\n");
    terminal.until_shows("it has ended", |text| {
        text.contains("code=130") || text.contains("late=130")
    });
    assert!(!is_held(&server));
}

/// The process of the command is stopped until the interrupt has come, so it can't begin before.
#[test]
fn an_interrupt_that_comes_before_the_command_begins_ends_it() {
    let server = server_with_holder();
    let mut terminal = shell(&server);
    terminal.type_in("redis-lock run -v k -- sleep 600; echo code=$?\n");
    server.until_waiters("k", 1);
    let command = command(&terminal);
    kill_process(command, Signal::STOP).expect("it is there");
    server.call("LOCK.RELEASE k a").value();
    terminal.until_shown("got it after");
    terminal.type_in("\x03");
    terminal.until_shown("^C");
    kill_process(command, Signal::CONT).expect("it is there");
    until("it has ended", || !is_held(&server));
    until_prompt(&terminal, "ready$");
    terminal.type_in("echo late=$?\n");
    terminal.until_shows("it has ended", |text| {
        text.contains("code=130") || text.contains("late=130")
    });
}

#[test]
fn interrupts_and_stops_around_the_start_are_not_lost() {
    let server = Server::start();
    let mut terminal = shell(&server);
    for round in 0..24 {
        server.call("LOCK.ACQUIRE k a PX 600000").grant();
        terminal.type_in("clear; redis-lock run k -- sleep 600\n");
        server.until_waiters("k", 1);
        server.call("LOCK.RELEASE k a").value();
        std::thread::sleep(Duration::from_micros(round * 200));
        if round % 2 == 0 {
            terminal.type_in("\x1a");
            terminal.until_shown("Stopped ");
            until_prompt(&terminal, "ready$");
            terminal.type_in("fg\n");
            until("it goes on", || command_state(&terminal) == Some('S'));
            until("it is held", || is_held(&server));
        }
        terminal.type_in("\x03");
        until("nobody holds it or waits", || {
            server.lock_info("k").is_none()
        });
        until_prompt(&terminal, "ready$");
    }
}

#[test]
fn an_interrupt_ends_the_script_too() {
    let server = Server::start();
    let mut terminal = shell(&server);
    terminal
        .type_in("sh -c 'redis-lock run k -- sh -c \"echo beg''un; exec sleep 600\"; exit 4'\n");
    terminal.until_shown("begun");
    terminal.type_in("\x03");
    until_prompt(&terminal, "ready$");
    terminal.type_in("echo code=$?\n");
    terminal.until_shown("code=130");
    assert!(!is_held(&server));
}

#[test]
fn the_rest_of_a_pipeline_reads_from_the_terminal() {
    let server = Server::start();
    let mut terminal = shell(&server);
    let pager = "sh -c 'read word; echo $word; read line </dev/tty; echo got=$line; exec cat'";
    terminal.type_in(&format!(
        "redis-lock run k -- sh -c 'echo beg''un; exec sleep 600' | {pager}\n"
    ));
    terminal.until_shown("begun");
    terminal.type_in("hello\n");
    terminal.until_shown("got=hello");
    terminal.type_in("\x03");
    until("it has ended", || !is_held(&server));
}

#[test]
fn a_script_reads_from_the_terminal_while_a_command_runs_in_its_background() {
    let server = Server::start();
    let mut terminal = shell(&server);
    let run = "redis-lock run k -- sh -c \"echo beg''un; exec sleep 600\"";
    terminal.type_in(&format!(
        "sh -c '{run} & for n in 1 2; do read line; echo got=$line; done; kill $!; wait $!'\n"
    ));
    terminal.until_shown("begun");
    // The script has begun to read the first line before the command runs.
    for line in ["one", "two"] {
        terminal.type_in(&format!("{line}\n"));
        terminal.until_shown(&format!("got={line}"));
    }
    until("it has ended", || !is_held(&server));
}

#[test]
fn an_interrupt_ends_a_wait_and_the_list_that_it_stands_in() {
    let server = server_with_holder();
    let mut terminal = shell(&server);
    terminal.type_in("for n in 1 2; do redis-lock run k -- true; done; echo after=$?\n");
    server.until_waiters("k", 1);
    terminal.type_in("\x03");
    until("nobody waits", || server.waiters("k") == 0);
    until_prompt(&terminal, "ready$");
    terminal.type_in("echo late=$?\n");
    terminal.until_shown("late=130");
    assert!(!terminal.text().contains("after=0"), "{}", terminal.text());
    assert_eq!(server.waiters("k"), 0);
}

#[test]
fn the_job_is_stopped_and_continued() {
    let server = Server::start();
    let mut terminal = shell(&server);
    for round in 0..3 {
        terminal.type_in("redis-lock run k --session -- sleep 600\n");
        until("it is held", || is_held(&server));
        terminal.type_in("\x1a");
        terminal.until_shown("Stopped ");
        until_prompt(&terminal, "ready$");
        let fence = server.known_lock("k").holder().int("fence");
        terminal.type_in("clear; echo clear''ed\n");
        terminal.until_shown("cleared");
        terminal.type_in("fg\n");
        until("it goes on", || command_state(&terminal) == Some('S'));
        assert_eq!(server.known_lock("k").holder().int("fence"), fence);
        terminal.type_in("\x03");
        until("it has ended", || !is_held(&server));
        until_prompt(&terminal, "ready$");
        terminal.type_in(&format!("echo next={round}.\n"));
        terminal.until_shown(&format!("next={round}."));
    }
}

#[test]
fn a_job_that_lost_its_lock_while_it_was_stopped_is_ended() {
    let server = Server::start();
    let mut terminal = shell(&server);
    terminal.type_in("redis-lock run k --lease 3s -- sh -c 'echo beg\"\"un; exec sleep 600'\n");
    terminal.until_shown("begun");
    terminal.type_in("\x1a");
    terminal.until_shown("Stopped ");
    until_prompt(&terminal, "ready$");
    until("its lease is over", || !is_held(&server));
    terminal.type_in("fg; echo code=$?\n");
    terminal.until_shown("was lost while the command ran");
    terminal.until_shown("code=79");
}

/// Many programs, like less, stop only themselves.
#[test]
fn a_command_that_stops_itself_gives_the_terminal_to_the_shell() {
    let server = Server::start();
    let mut terminal = shell(&server);
    terminal
        .type_in("redis-lock run k -- sh -c 'kill -TSTP $$; echo goes on; exit 4'; echo code=$?\n");
    terminal.until_shown("Stopped ");
    until_prompt(&terminal, "ready$");
    terminal.type_in("fg; echo code=$?\n");
    terminal.until_shown("goes on");
    terminal.until_shown("code=4");
}

#[test]
fn a_job_in_the_background_that_reads_is_stopped_as_any() {
    let server = Server::start();
    let mut terminal = shell(&server);
    terminal.type_in("redis-lock run k -- sh -c 'read line; echo got=$line' &\n");
    until("it is held", || is_held(&server));
    terminal.type_in("until jobs | grep -q Stopped; do sleep 0.05; done; echo is''stopped\n");
    terminal.until_shown("isstopped");
    terminal.type_in("fg\n");
    until("it goes on", || command_state(&terminal) == Some('S'));
    terminal.type_in("hello\n");
    terminal.until_shown("got=hello");
    until("it has ended", || !is_held(&server));
}

#[test]
fn a_shell_within_watches_its_own_jobs() {
    let server = Server::start();
    let mut terminal = shell(&server);
    terminal.type_in("PS1='with''in$ ' redis-lock run k -- bash --norc --noprofile -i\n");
    terminal.until_shown("within$");
    terminal.type_in("sh -c \"echo slee''ps; exec sleep 600\"\n");
    terminal.until_shown("sleeps");
    terminal.type_in("\x03");
    until_prompt(&terminal, "within$");
    terminal.type_in("echo inner=$?\n");
    terminal.until_shown("inner=130");
    assert!(is_held(&server));
    terminal.type_in("exit 5\n");
    until_prompt(&terminal, "ready$");
    terminal.type_in("echo outer=$?\n");
    terminal.until_shown("outer=5");
    assert!(!is_held(&server));
    // The terminal belongs to the outer shell again.
    terminal.type_in("sh -c \"echo rea''ds; exec cat\"\n");
    terminal.until_shown("reads");
    terminal.type_in("\x03");
    until_prompt(&terminal, "ready$");
    terminal.type_in("echo cat=$?\n");
    terminal.until_shown("cat=130");
    server.call("PING").text();
}

/// Like the only command of an `ssh -t` whose connection ends.
#[test]
fn a_hangup_of_its_own_terminal_reaches_the_command() {
    let server = Server::start();
    let pair = native_pty_system()
        .openpty(PtySize::default())
        .expect("a terminal");
    let script = "trap 'exit 6' HUP; echo begun; while :; do sleep 0.01; done";
    let run = ["run", "k", "--", "sh", "-c", script];
    let run = words(server.port(), PROGRAM, &run);
    let mut child = pair.slave.spawn_command(run).expect("it runs");
    drop(pair.slave);
    let mut output = pair.master.try_clone_reader().expect("its output");
    let mut begun = [0; 5];
    output.read_exact(&mut begun).expect("a word");
    drop((output, pair.master));
    let status = eventually("it ends", || child.try_wait().expect("a child"));
    assert_eq!(status.exit_code(), 6);
    assert_eq!(server.lock_info("k"), None);
}

/// The server is stopped meanwhile, so that the stop comes while its reply is awaited.
#[test]
fn a_command_that_is_stopped_while_it_awaits_a_reply_goes_on() {
    let server = server_with_holder();
    let mut terminal = shell(&server);
    for (words, shown) in [
        ("ls", "k    exclusive"),
        ("info k", "held by a"),
        ("why k", "in the last two minutes"),
        ("break --yes k", "1 broken"),
    ] {
        server.freeze();
        terminal.type_in("\x0c");
        terminal.until_shows("nothing else", |text| text.trim_end() == "ready$");
        terminal.type_in(&format!("redis-lock -t 20s {words}\n"));
        let job = child_of(terminal.id());
        until("it awaits a reply", || {
            has_socket(job) && state(job) == Some('S')
        });
        terminal.type_in("\x1a");
        terminal.until_shown("Stopped ");
        until_prompt(&terminal, "ready$");
        server.thaw();
        terminal.type_in("fg; echo code=$?\n");
        terminal.until_shown(shown);
        terminal.until_shown("code=0");
        until_prompt(&terminal, "ready$");
    }
}

fn has_socket(process: Pid) -> bool {
    let descriptors = std::fs::read_dir(format!("/proc/{process}/fd"));
    let mut targets = descriptors
        .into_iter()
        .flatten()
        .flatten()
        .map(|it| std::fs::read_link(it.path()));
    targets.any(|it| it.is_ok_and(|it| it.to_string_lossy().starts_with("socket:")))
}
