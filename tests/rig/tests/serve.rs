//! The orders of `rig serve`. REDIS_SERVER names the server.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Command, Stdio};

use redis::{Client, RedisResult, Value};

#[test]
fn a_crash_fails_its_end_and_servers_end_with_the_input() {
    let mut rig = Command::new(env!("CARGO_BIN_EXE_rig"))
        .arg("serve")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    let mut orders = rig.stdin.take().expect("a pipe");
    let mut replies = BufReader::new(rig.stdout.take().expect("a pipe")).lines();
    let mut order = |order: &str| {
        writeln!(orders, "{order}").expect("it reads");
        replies.next().expect("a reply").expect("a reply")
    };
    let ports = ["bare", "bare"].map(|start| {
        let reply = order(start);
        let port = reply.strip_prefix("ok ").expect("a server");
        port.parse::<u16>().expect("a port")
    });
    assert_eq!(order(&format!("freeze {}", ports[0])), "ok");
    assert_eq!(order(&format!("thaw {}", ports[0])), "ok");
    let client = Client::open((Ipv4Addr::LOCALHOST.to_string(), ports[0])).expect("an address");
    let mut connection = client.get_connection().expect("a server");
    let panic: RedisResult<Value> = redis::cmd("DEBUG").arg("PANIC").query(&mut connection);
    assert!(panic.is_err());
    assert_eq!(order(&format!("end {}", ports[0])), "error");
    assert_eq!(order(&format!("end {}", ports[0])), "ok");
    drop(orders);
    assert!(rig.wait().expect("its end").success());
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, ports[1])).is_err());
}
