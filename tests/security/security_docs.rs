//! The recipes of docs/operate/security.md: the commands that each role may send and may not send.
//! The page's statements about tokens and attackers follow.

use std::fs;
use std::path::Path;

use redis::Value;
use redis_lock_rig::{Plan, Process};
use support::{
    module_path, server_binary, server_with_holder, until, Client, Expect, Flavour, LockInfo,
    Reply, Server, LONG,
};

/// A role of the page.
struct Recipe {
    /// The user that the recipe creates.
    name: String,
    /// The command that creates the user.
    setuser: String,
    may: Vec<String>,
    may_not: Vec<String>,
}

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operate/security.md");
    fs::read_to_string(path).expect("the document")
}

/// Returns the code in the cells of a column.
fn column(rows: &str, number: usize) -> Vec<String> {
    let cells = rows.lines().filter_map(|row| row.split('|').nth(number));
    let code = cells.filter_map(|cell| cell.split('`').nth(1));
    code.map(str::to_owned).collect()
}

#[track_caller]
fn recipe(section: &str) -> Recipe {
    let (_, rest) = section.split_once("> ACL SETUSER ").expect("a recipe");
    let rules = rest.lines().next().expect("rules");
    let (_, rows) = section.split_once("|---|---|\n").expect("a table");
    let rows = rows.split("\n\n").next().expect("rows");
    Recipe {
        name: rules.split(' ').next().expect("a name").to_owned(),
        setuser: format!("ACL SETUSER {rules}"),
        may: column(rows, 1),
        may_not: column(rows, 2),
    }
}

fn recipes() -> Vec<Recipe> {
    let text = document();
    let (_, rest) = text.split_once("\n## Recipes\n").expect("recipes");
    let section = rest.split("\n## ").next().expect("a section");
    section.split("\n### ").skip(1).map(recipe).collect()
}

#[track_caller]
fn setuser(name: &str) -> String {
    let found = recipes().into_iter().find(|recipe| recipe.name == name);
    found.expect("a recipe").setuser
}

/// Opens a connection of the role's user.
#[track_caller]
fn played_by(server: &Server, name: &str) -> Client {
    server.call(setuser(name)).okay();
    let mut client = server.client();
    client.call(format!("AUTH {name} secret")).okay();
    client
}

/// Starts a server where another client's token holds the lock that the recipes are tried on.
#[track_caller]
fn server_with_orders() -> Server {
    let server = Server::start();
    server
        .call(format!("LOCK.ACQUIRE orders:42 theirs {LONG}"))
        .grant();
    server
}

fn is_forbidden(reply: &Reply) -> bool {
    reply
        .as_ref()
        .is_err_and(|error| error.starts_with("NOPERM"))
}

#[test]
fn each_role_may_send_what_its_recipe_says_and_no_more() {
    let recipes = recipes();
    assert_eq!(recipes.len(), 7);
    for role in &recipes {
        assert!(!role.may.is_empty() && !role.may_not.is_empty());
        for command in &role.may {
            // Each command has its own connection, because a subscribed client may do little else.
            let server = server_with_orders();
            let reply = played_by(&server, &role.name).call(command);
            assert!(!is_forbidden(&reply), "{}: {command}: {reply:?}", role.name);
        }
        let server = server_with_orders();
        let before = server.known_lock("orders:42").holder_tokens();
        let mut client = played_by(&server, &role.name);
        for command in &role.may_not {
            let reply = client.call(command);
            assert!(is_forbidden(&reply), "{}: {command}: {reply:?}", role.name);
        }
        assert_eq!(server.known_lock("orders:42").holder_tokens(), before);
    }
}

#[test]
fn the_recipes_hold_without_any_category() {
    for role in recipes() {
        assert!(!role.setuser.contains('@'), "{}", role.setuser);
    }
}

// --- the own category -------------------------------------------------------------------------

fn has_own_category(server: &Server) -> bool {
    server.flavour() == Flavour::Valkey || server.version() >= (7, 4, 0)
}

#[test]
fn users_of_the_configuration_file_can_have_the_own_category() {
    if !has_own_category(&Server::start()) {
        return; // A test below covers a server without the category.
    }
    let mut server = Server::builder()
        .config("user worker on nopass ~orders:* +@lock -lock.info")
        .start();
    let played = |server: &Server| {
        let mut worker = server.client();
        worker.call("AUTH worker any").okay();
        worker.call("LOCK.ACQUIRE orders:42 me").grant();
        assert_eq!(worker.call("LOCK.RELEASE orders:42 me").int(), 1);
        for command in ["LOCK.INFO orders:42", "GET orders:42", "PING"] {
            assert!(is_forbidden(&worker.call(command)), "{command}");
        }
    };
    played(&server);
    server.restart();
    played(&server);
}

#[test]
fn users_of_an_acl_file_can_have_the_own_category() {
    if !has_own_category(&Server::start()) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("users.acl");
    fs::write(&file, "user worker on nopass ~orders:* +@lock\n").expect("a file");
    let server = Server::builder()
        .config(&format!("aclfile \"{}\"", file.display()))
        .start();
    let mut worker = server.client();
    worker.call("AUTH worker any").okay();
    worker.call("LOCK.ACQUIRE orders:42 me").grant();
    server.call("ACL LOAD").okay();
    server.call("ACL SAVE").okay();
    let saved = fs::read_to_string(&file).expect("a file");
    assert!(saved.contains("+@lock"), "{saved}");
}

/// Returns the reason why a server with this user doesn't start, or `None` if it starts.
fn refusal_of_a_start(module: Option<&Path>) -> Option<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let plan = Plan {
        module: module.map(Path::to_owned),
        lines: vec!["user worker on nopass ~orders:* +@lock".to_owned()],
        ..Plan::new(&server_binary())
    };
    let refused = Process::start(plan, folder.path()).err();
    refused.map(|refused| format!("{refused:#}"))
}

#[test]
fn a_server_without_the_own_category_does_not_start_with_a_user_who_has_it() {
    let known = "Unknown command or category name in ACL";
    let refused = refusal_of_a_start(None).expect("no module, no category");
    assert!(refused.contains(known), "{refused}");
    let refused = refusal_of_a_start(Some(&module_path()));
    if has_own_category(&Server::start()) {
        assert_eq!(refused, None);
    } else {
        assert!(refused.expect("no category").contains(known));
    }
}

#[test]
fn the_own_category_is_there_once_after_a_load_that_failed() {
    let server = Server::builder().without_module().start();
    if !has_own_category(&server) {
        return;
    }
    let path = module_path();
    let path = path.to_str().expect("a path in UTF-8");
    let refused = ["MODULE", "LOADEX", path, "CONFIG", "lock.max-waiters", "-1"];
    for _ in 0..2 {
        server.call(&refused).error();
    }
    server.call(&["MODULE", "LOAD", path]).okay();
    server.call("ACL SETUSER worker on nopass ~* +@lock").okay();
    let categories = server.call("ACL CAT").list();
    let own = Value::BulkString(b"lock".to_vec());
    assert_eq!(categories.iter().filter(|it| **it == own).count(), 1);
    let mut worker = server.client();
    worker.call("AUTH worker any").okay();
    worker.call("LOCK.ACQUIRE k me").grant();
}

// --- the roles at work ------------------------------------------------------------------------

#[test]
fn an_observer_sees_that_somebody_holds_and_waits_but_no_token() {
    let server = server_with_orders();
    let _waiter = server.waiter(format!("LOCK.WAIT orders:42 next {LONG}"));
    server.call("SET private 1").okay();
    let mut observer = played_by(&server, "observer");
    let info = LockInfo::of(observer.call("LOCK.INFO orders:42").value()).expect("a lock");
    assert_eq!((info.mode.as_str(), info.waiters), ("exclusive", 1));
    for shown in [info.holder(), &info.queue[0]] {
        assert_eq!(shown.get("token"), Value::Nil);
        assert!(!shown.has("client-addr"));
    }
    assert!(info.holder().int("fence") > 0);
    assert!(info.holder().int("held-ms") >= 0);
    let mut elsewhere = server.client();
    server
        .call("ACL SETUSER elsewhere on nopass %R~bills:* +scan")
        .okay();
    elsewhere.call("AUTH elsewhere any").okay();
    let found = elsewhere.call("SCAN 0 COUNT 1000").list();
    let names = Ok(found[1].clone()).list();
    assert!(names.contains(&Value::BulkString(b"private".to_vec())));
}

#[test]
fn a_breaker_ends_the_grant_that_it_has_seen_and_no_other() {
    let server = server_with_orders();
    let mut next = server.waiter(format!("LOCK.WAIT orders:42 next {LONG}"));
    let mut breaker = played_by(&server, "breaker");
    let seen = LockInfo::of(breaker.call("LOCK.INFO orders:42").value()).expect("a lock");
    let [token] = &seen.holder_tokens()[..] else {
        panic!("{seen:?}")
    };
    let release = format!("LOCK.RELEASE orders:42 {token} ALL");
    assert_eq!(breaker.call(&release).int(), 1);
    assert_eq!(next.recv().grant().token, "next");
    assert_eq!(breaker.call(&release).int(), 0);
    assert_eq!(server.known_lock("orders:42").holder_tokens(), ["next"]);
}

#[test]
fn a_service_hears_of_its_grants_without_a_right_to_publish() {
    let server = server_with_orders();
    let mut service = played_by(&server, "service");
    for channel in ["granted:1", "redis-lock:1"] {
        let mut listener = played_by(&server, "service");
        listener.call(format!("SUBSCRIBE {channel}")).value();
        let place = service.call(format!("LOCK.QUEUE orders:42 me NOTIFY {channel} task-17"));
        assert_eq!(place.int(), 1);
        assert_eq!(server.call("LOCK.RELEASE orders:42 theirs").int(), 1);
        let message = Ok(listener.recv().list().pop().expect("a message")).text();
        assert_eq!(message, "task-17");
        assert_eq!(service.call("LOCK.RELEASE orders:42 me").int(), 1);
        server
            .call(format!("LOCK.ACQUIRE orders:42 theirs {LONG}"))
            .grant();
    }
}

#[test]
fn a_replica_follows_by_its_recipe() {
    let primary = server_with_orders();
    primary.call(setuser("replica")).okay();
    let replica = Server::builder()
        .config("masteruser replica")
        .config("masterauth secret")
        .start();
    // The replica's own default user may run neither LOCK.ACQUIRE nor LOCK.APPLY.
    replica
        .call("ACL SETUSER default -lock.acquire -lock.apply")
        .okay();
    replica.replica_of(&primary);
    let fence = primary.known_lock("orders:42").holder().int("fence");
    let copied = replica.known_lock("orders:42");
    assert_eq!(copied.holder_tokens(), ["theirs"]);
    assert_eq!(copied.holder().int("fence"), fence);
}

/// The Sentinel uses the recipe's user for its connection to a server and its commands there.
#[test]
fn a_sentinel_fails_over_by_its_recipe() {
    let (primary, replica) = (server_with_orders(), Server::start());
    for server in [&primary, &replica] {
        server.call(setuser("sentinel")).okay();
    }
    replica.replica_of(&primary);
    let port = primary.port();
    let sentinel = Server::builder()
        .without_module()
        .argument("--sentinel")
        .config(&format!("sentinel monitor locks 127.0.0.1 {port} 1"))
        .config("sentinel auth-user locks sentinel")
        .config("sentinel auth-pass locks secret")
        .start();
    for period in ["info-period 300", "publish-period 200", "ask-period 200"] {
        sentinel.call(format!("SENTINEL DEBUG {period}")).okay();
    }
    until("the Sentinel's failover begins", || {
        sentinel.call("SENTINEL FAILOVER locks").is_ok()
    });
    // A Sentinel closes all connections of clients to a server whose role it changes.
    let asked = |server: &Server, command: &str| {
        let mut client = Client::try_connect(server.port()).ok()?;
        client.try_call(command).ok()
    };
    let role = |server: &Server| Some(Ok(asked(server, "ROLE")?).list().swap_remove(0));
    let roles = ["slave", "master"].map(|role| Some(Value::BulkString(role.into())));
    until("they have changed their roles", || {
        [role(&primary), role(&replica)] == roles
    });
    for server in [&primary, &replica] {
        server.reconnect();
        let denied = server.call("ACL LOG").list();
        assert!(denied.is_empty(), "{denied:?}");
    }
    assert_eq!(replica.known_lock("orders:42").holder_tokens(), ["theirs"]);
}

// --- tokens -----------------------------------------------------------------------------------

#[test]
fn the_log_of_slow_commands_and_monitor_show_tokens() {
    let server = Server::builder()
        .config("slowlog-log-slower-than 0")
        .start();
    let mut watcher = server.client();
    watcher.call("MONITOR").okay();
    server
        .call(format!("LOCK.ACQUIRE k unheard-of {LONG}"))
        .grant();
    let logged = format!("{:?}", server.call("SLOWLOG GET 10"));
    let token = format!("{:?}", Value::BulkString(b"unheard-of".to_vec()));
    assert!(logged.contains(&token), "{logged}");
    until("MONITOR shows the token", || {
        watcher.recv().text().contains("\"unheard-of\"")
    });
}

#[test]
fn files_have_the_tokens() {
    let server = Server::builder()
        .config("appendonly yes")
        .config("appendfsync always")
        .config("rdbcompression no")
        .start();
    server
        .call(format!("LOCK.ACQUIRE k unheard-of {LONG}"))
        .grant();
    server.call("SAVE").okay();
    let token = b"unheard-of";
    let has_token = |path: &Path| {
        let bytes = fs::read(path).expect("a file");
        bytes.windows(token.len()).any(|part| part == token)
    };
    assert!(has_token(&server.dir().join("dump.rdb")));
    let folder = fs::read_dir(server.dir().join("appendonlydir")).expect("a folder");
    let mut files = folder.map(|file| file.expect("a file").path());
    assert!(files.any(|file| has_token(&file)));
}

// --- attackers --------------------------------------------------------------------------------

#[test]
fn nothing_limits_a_lease() {
    let server = Server::start();
    server
        .call("LOCK.ACQUIRE k mine PX 9007199254740991")
        .grant();
}

#[test]
fn what_one_uses_up_is_missing_for_all() {
    let server = Server::builder()
        .config("lock.max-waiters 3")
        .config("lock.max-tickets 2")
        .start();
    for name in ["guest", "worker"] {
        let rules = format!("on nopass ~{name}:* +lock.acquire +lock.wait +lock.queue +client|id");
        server.call(format!("ACL SETUSER {name} {rules}")).okay();
    }
    let client_of = |name: &str| {
        let mut client = server.client();
        client.call(format!("AUTH {name} any")).okay();
        client
    };
    let mut guest = client_of("guest");
    guest.call(format!("LOCK.ACQUIRE guest:1 g {LONG}")).grant();
    let mut waiting: Vec<Client> = (0..3).map(|_| client_of("guest")).collect();
    for (number, client) in waiting.iter_mut().enumerate() {
        server.block(client, format!("LOCK.WAIT guest:1 w{number} {LONG}"));
    }
    for number in 0..2 {
        guest.call(format!("LOCK.QUEUE guest:1 p{number}")).int();
    }
    let mut worker = client_of("worker");
    worker
        .call(format!("LOCK.ACQUIRE worker:1 a {LONG}"))
        .grant();
    for (command, refusal) in [
        ("LOCK.WAIT worker:1 b", "MAXWAITERS"),
        ("LOCK.QUEUE worker:1 b", "MAXTICKETS"),
    ] {
        let error = worker.call(command).error();
        assert!(error.starts_with(refusal), "{command}: {error}");
    }
}

#[test]
fn a_token_that_is_not_known_does_nothing() {
    let server = server_with_holder();
    let _waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    for command in [
        "LOCK.EXTEND k other PX 1",
        "LOCK.RELEASE k other ALL",
        "LOCK.CHECK k other",
        "LOCK.CANCEL k other",
    ] {
        assert_eq!(server.call(command).int(), 0, "{command}");
    }
    let info = server.known_lock("k");
    assert_eq!(
        (info.holder_tokens(), info.waiters),
        (vec!["a".to_owned()], 1)
    );
}
