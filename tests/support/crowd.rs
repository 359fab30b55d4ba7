//! Connections in a process of their own, so that they can die with it.
//!
//! The process is the test binary itself. It runs only the function that calls [`be`].

use std::env;
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use crate::{Client, Expect, Server, STALLS};

const PORT: &str = "LOCK_CROWD_PORT";
const COUNT: &str = "LOCK_CROWD_COUNT";
const COMMAND: &str = "LOCK_CROWD_COMMAND";

/// The line that the process prints when all its connections have their reply.
const READY: &str = "the crowd is there";

/// A script that raises the limit of open files to 4096 if it may, and becomes the given program.
const WITH_MANY_FILES: &str = "ulimit -n 4096 2>/dev/null; exec \"$0\" \"$@\"";

/// A process that holds connections.
pub struct Crowd {
    child: Child,
}

impl Crowd {
    /// Starts a process with `count` connections. Each connection has sent `command` and got a
    /// reply that is no error. In the command, `#` stands for the connection's number. `function`
    /// is the `#[ignore]`d function of this test binary that calls [`be`].
    #[track_caller]
    pub fn start(server: &Server, function: &str, count: usize, command: &str) -> Crowd {
        let mut child = Command::new("sh")
            .args(["-c", WITH_MANY_FILES])
            .arg(env::current_exe().expect("the path of this program"))
            .args(["--ignored", "--exact", function, "--nocapture"])
            .env(PORT, server.port().to_string())
            .env(COUNT, count.to_string())
            .env(COMMAND, command)
            .env_remove(STALLS)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program can be run");
        let output = child.stdout.take().expect("a pipe");
        let ready = BufReader::new(output)
            .lines()
            .map_while(Result::ok)
            .any(|line| line.ends_with(READY));
        assert!(ready, "the process ended before its connections were made");
        Crowd { child }
    }

    /// Kills the process like `kill -9`.
    #[track_caller]
    pub fn kill9(mut self) {
        self.child.kill().expect("a process that lives");
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // The process may be dead already. It has to end with the test.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Runs the crowd if this process was started as one, until it is killed or its parent ends.
pub fn be() {
    let Ok(port) = env::var(PORT) else {
        return;
    };
    let port = port.parse().expect("a port");
    let count: usize = var(COUNT).parse().expect("a number");
    let command = var(COMMAND);
    let join = |number: usize| {
        let mut client = Client::connect(port);
        let command = command.replace('#', &number.to_string());
        client.call(command).value();
        client
    };
    let crowd: Vec<Client> = (0..count).map(join).collect();
    println!("{READY}");
    io::stdin().read_to_end(&mut Vec::new()).ok();
    drop(crowd);
}

fn var(name: &str) -> String {
    env::var(name).expect("set by the process that started this one")
}
