//! The commands to send: one weighted line for each kind of command, and the words of the lines.
//!
//! A line is a template. Blanks separate words, and ` ; ` separates commands. `<name>` stands for
//! one choice of the rule `name` in [`RULES`] or [`VERBATIM`], and `<1-40>` for a number.
//! `<client>`, `<payload>`, `<fence>`, `<own-node>`, `<other-node>` and `<other-port>` stand for
//! values that only the run knows. Within a word (`t<0-5>`) they stand for a part of the word. `<any>` is
//! another kind of the table.
//!
//! Keys, tokens and leases are few and short, so that commands collide.

/// A kind of command, or a few commands that belong together.
#[derive(Clone, Copy)]
pub struct Kind {
    /// The name in `--only`, `--without` and the table of faults in `left_out.rs`.
    pub name: &'static str,
    /// The frequency, relative to the other kinds.
    pub weight: u32,
    /// The commands to send.
    pub template: &'static str,
}

const fn kind(name: &'static str, weight: u32, template: &'static str) -> Kind {
    Kind {
        name,
        weight,
        template,
    }
}

/// The kinds that every run sends. One line adds one kind.
#[rustfmt::skip]
pub const KINDS: &[Kind] = &[
    // Locks. WAIT is rare, because it stops its connection.
    kind("acquire", 1500, "LOCK.ACQUIRE <key> <token> <grant> <replicas>"),
    kind("wait", 200, "LOCK.WAIT <key> <token> <block> <grant> <replicas>"),
    kind("wait-then-more", 30, "LOCK.WAIT <key> <token> <block> <grant> ; <any> ; LOCK.RELEASE <key> <token>"),
    // Sessions that have waiters while their own connection waits.
    kind("hold-and-wait", 60, "LOCK.ACQUIRE <key> <token> <lease> SESSION ; LOCK.WAIT <key> <token> <block> <session>"),
    kind("hold-and-mwait", 20, "LOCK.ACQUIRE <key> <token> SHARED SESSION ; LOCK.MWAIT <keys> <token> <block> <mode>"),
    // Replies that are held back for the replica, beside other ends of their grants.
    kind("held-back-quit", 15, "LOCK.WAIT <key> <token> <block> <grant> REPLICAS 1 WITHIN <1-30> ; QUIT"),
    kind("held-back-then-more", 20, "LOCK.ACQUIRE <key> <token> <grant> REPLICAS 1 WITHIN <1-30> ; <any> ; LOCK.RELEASE <key> <token>"),
    kind("wait-quit", 15, "LOCK.WAIT <key> <token> <block> <grant> ; QUIT"),
    kind("queue", 150, "LOCK.QUEUE <key> <token> <place> <grant>"),
    kind("cancel", 60, "LOCK.CANCEL <key> <token>"),
    // A late command of a token that has left.
    kind("leave-then-more", 40, "LOCK.RELEASE <key> <token> LEAVE <1-30> ; LOCK.WAIT <key> <token> <block> <grant>"),
    kind("extend", 500, "LOCK.EXTEND <key> <token> <lease> <gt> <tie> <data> <raise> <replicas>"),
    kind("release", 1400, "LOCK.RELEASE <key> <token> <how-many>"),
    kind("check", 400, "LOCK.CHECK <key> <token>"),
    kind("info", 400, "LOCK.INFO <key> <waiters>"),
    kind("hot", 100, "LOCK.HOT <count>"),
    kind("macquire", 500, "LOCK.MACQUIRE <keys> <token> <grant> <replicas>"),
    kind("mwait", 80, "LOCK.MWAIT <keys> <token> <block> <grant> <replicas>"),
    kind("mqueue", 60, "LOCK.MQUEUE <keys> <token> <place> <grant>"),
    kind("mextend", 200, "LOCK.MEXTEND <keys> <token> <lease> <gt> <tie> <data> <raise> <replicas>"),
    kind("mrelease", 400, "LOCK.MRELEASE <keys> <token> <how-many>"),
    kind("help", 5, "LOCK.HELP"),
    kind("apply", 30, "LOCK.APPLY <key> <effect>"),

    // Keys, whatever they hold.
    kind("del", 200, "DEL <key> <some-key>"),
    kind("unlink", 100, "UNLINK <key> <some-key>"),
    kind("exists", 50, "EXISTS <key> <some-key>"),
    kind("type", 30, "TYPE <some-key>"),
    kind("ttl", 50, "<ttl> <some-key>"),
    kind("touch", 20, "TOUCH <some-key>"),
    kind("object", 20, "OBJECT <object> <some-key>"),
    kind("memory-usage", 20, "MEMORY USAGE <some-key>"),
    kind("expire", 100, "<expire> <some-key> <expiry>"),
    kind("persist", 40, "PERSIST <some-key>"),
    kind("rename", 120, "<rename> <some-key> <some-key>"),
    kind("copy", 30, "COPY <some-key> <some-key> <copy>"),
    kind("move", 60, "MOVE <some-key> <db>"),
    kind("swapdb", 20, "SWAPDB <db> <db>"),
    kind("select", 60, "SELECT <db>"),
    kind("dump", 150, "DUMP <key>"),
    kind("restore", 150, "RESTORE <key> <restore-ttl> <payload> <restore>"),
    kind("flush", 10, "<flush> ASYNC"),
    kind("flush-sync", 8, "<flush> <sync>"),
    kind("scan", 30, "SCAN <0-64> TYPE <type> COUNT <1-20>"),
    kind("keys", 10, "KEYS *"),
    kind("randomkey", 10, "RANDOMKEY"),
    kind("sort", 10, "SORT <some-key> BY nosort STORE <some-key>"),
    kind("last-fence", 20, "<last-fence>"),
    kind("string", 120, "<write-string>"),
    kind("collection", 120, "<write-collection>"),
    kind("read", 60, "<read>"),
    kind("blpop", 20, "<blocking-pop>"),
    kind("watch", 60, "WATCH <key> <some-key>"),
    kind("unwatch", 20, "UNWATCH"),

    // Several at once.
    kind("multi", 150, "MULTI ; <any> ; <any> ; <any> ; EXEC"),
    kind("multi-open", 20, "MULTI"),
    kind("multi-end", 40, "<end-of-multi>"),
    kind("release-and-kill", 30, "MULTI ; LOCK.RELEASE <key> <token> ; CLIENT KILL ID <client> ; EXEC"),
    kind("cancel-and-kill", 20, "MULTI ; LOCK.CANCEL <key> <token> ; CLIENT KILL ID <client> ; EXEC"),
    kind("release-and-cancel", 20, "MULTI ; LOCK.RELEASE <key> <token> ; LOCK.CANCEL <key> <token> ; EXEC"),
    kind("delete-and-unblock", 30, "MULTI ; DEL <key> ; CLIENT UNBLOCK <client> <unblock> ; EXEC"),
    kind("eval", 250, "EVAL <script> 2 <pair> <token> <1-40>"),
    kind("eval-ro", 50, "EVAL_RO <script> 2 <pair> <token> <1-40>"),
    kind("fcall", 100, "<fcall> <function> 2 <pair> <token> <1-40>"),
    kind("function", 8, "<change-functions>"),
    kind("script", 5, "SCRIPT <change-scripts>"),

    // Connections.
    kind("kill", 60, "CLIENT KILL ID <client>"),
    // The commands after CLIENT KILL reuse the memory of the killed client.
    kind("kill-and-fill", 60, "CLIENT KILL ID <client> ; <fill> ; <fill> ; <any>"),
    kind("kill-many", 3, "CLIENT KILL TYPE <client-type>"),
    kind("unblock", 150, "CLIENT UNBLOCK <client> <unblock>"),
    kind("pause", 2, "CLIENT PAUSE <1-8>"),
    kind("pause-write", 3, "CLIENT PAUSE <1-12> WRITE"),
    kind("unpause", 10, "CLIENT UNPAUSE"),
    kind("reply-off", 10, "CLIENT REPLY OFF ; <any> ; <any> ; CLIENT REPLY ON"),
    kind("reply", 5, "CLIENT REPLY <reply>"),
    kind("no-evict", 10, "CLIENT NO-EVICT <on-off>"),
    kind("no-touch", 10, "CLIENT NO-TOUCH <on-off>"),
    kind("tracking", 30, "CLIENT TRACKING <tracking>"),
    kind("caching", 10, "CLIENT CACHING <yes-no>"),
    kind("client", 30, "CLIENT <client-word>"),
    kind("hello", 30, "HELLO <2-3>"),
    kind("reset", 20, "RESET"),
    kind("quit", 5, "QUIT"),
    kind("subscribe", 5, "SUBSCRIBE __keyevent@0__:del ; <any> ; UNSUBSCRIBE"),
    kind("wait-for-replicas", 8, "WAIT <0-1> <1-5>"),
    kind("wait-for-file", 4, "WAITAOF <0-1> <0-1> <1-5>"),

    // Users.
    kind("setuser", 15, "ACL SETUSER u<0-2> <rights>"),
    kind("deluser", 8, "ACL DELUSER u<0-2>"),
    kind("auth", 10, "AUTH u<0-2> secret"),
    kind("auth-for-a-while", 20, "AUTH u<0-2> secret ; <any> ; <any> ; <any> ; AUTH default secret"),
    kind("dryrun", 10, "ACL DRYRUN u<0-2> LOCK.ACQUIRE <key> <token>"),

    // The server.
    kind("config", 30, "CONFIG SET <setting>"),
    kind("busy-soon", 1, "CONFIG SET busy-reply-threshold 1"),
    kind("scarce-memory", 5, "CONFIG SET maxmemory 1 ; <any> ; <any> ; <any> ; CONFIG SET maxmemory 0"),
    kind("scarce-replicas", 3, "CONFIG SET min-replicas-to-write 2 ; <any> ; <any> ; CONFIG SET min-replicas-to-write 0"),
    kind("evict-clients", 3, "CONFIG SET maxmemory-clients 60000 ; <any> ; <any> ; CONFIG SET maxmemory-clients 0"),
    kind("debug-reload", 2, "DEBUG RELOAD"),
    kind("debug-loadaof", 1, "DEBUG LOADAOF"),
    kind("debug", 20, "DEBUG <debug>"),
    kind("rewrite", 1, "BGREWRITEAOF"),
    kind("save", 1, "BGSAVE"),
    kind("report", 20, "INFO <section>"),
    kind("command", 10, "COMMAND GETKEYS LOCK.MACQUIRE <keys> <token>"),
];

/// The additional kinds of a run with cluster-enabled: slots that move away and return. `a`, `b`
/// and `c` hash to the slots 15495, 3300 and 7365.
#[rustfmt::skip]
pub const CLUSTER_KINDS: &[Kind] = &[
    kind("migrating", 25, "CLUSTER SETSLOT <slot> MIGRATING <node>"),
    kind("importing", 25, "CLUSTER SETSLOT <slot> IMPORTING <node>"),
    kind("stable", 30, "CLUSTER SETSLOT <slot> STABLE"),
    kind("setslot", 25, "CLUSTER SETSLOT <slot> NODE <node>"),
    kind("delslots", 10, "CLUSTER DELSLOTS <slot> ; <any> ; CLUSTER ADDSLOTS <slot>"),
    kind("addslots", 40, "CLUSTER ADDSLOTS <slot>"),
    kind("there-and-back", 15, "CLUSTER SETSLOT 15495 MIGRATING <other-node> ; <any> ; MIGRATE 127.0.0.1 <other-port> {a}<0-3> 0 50 ; <any> ; CLUSTER SETSLOT 15495 STABLE"),
    kind("migrate", 20, "MIGRATE 127.0.0.1 <other-port> <key> 0 50 <migrate>"),
    kind("asking", 60, "ASKING ; <any>"),
    kind("readonly", 10, "<readonly>"),
    kind("count-keys", 10, "CLUSTER COUNTKEYSINSLOT <slot>"),
];

/// The rules of templates: a name, and its choices with their weights.
#[rustfmt::skip]
pub const RULES: &[(&str, &[(u32, &str)])] = &[
    ("key", &[(1, "{<tag>}<0-3>")]),
    ("tag", &[(5, "a"), (3, "b"), (1, "c")]),
    // Keys that hold locks, and others.
    ("some-key", &[(1, "<key>"), (2, "{<tag>}x<0-2>")]),
    ("pair", &[(3, "{a}<0-3> {a}<0-3>"), (1, "{b}<0-3> {b}<0-3>")]),
    ("keys", &[
        (20, "1 <key>"), (40, "2 {a}<0-1> {a}<2-3>"), (10, "2 {a}<2-3> {a}<0-1>"), (20, "2 {b}<0-1> {b}<2-3>"),
        (15, "3 {a}0 {a}<1-2> {a}3"), (5, "4 {a}3 {a}2 {a}1 {a}0"), (4, "2 <key> <key>"), (1, "<number> <key> <key>"),
    ]),
    ("token", &[(95, "t<0-5>"), (5, "*"), (1, "<odd-token>")]),
    ("grant", &[
        (6, "<lease> <data>"), (6, "<lease> <mode> <data>"), (3, "<mode> <lease> <holds>"), (3, "<lease> <session> <mode>"),
        (1, "<holds> <session> <lease> <mode>"),
    ]),
    ("lease", &[
        (4, "PX <1-5>"), (10, "PX <1-40>"), (3, "PX <40-400>"), (2, ""), (1, "EX 1"), (1, "PX 3600000"),
    ]),
    ("mode", &[(4, ""), (8, "SHARED"), (6, "SHARED LIMIT <1-4>"), (4, "SHARED LIMIT <3-4> PERMITS <1-3>"), (1, "SHARED LIMIT 3 PERMITS <1-4>")]),
    ("holds", &[(6, "REENTRANT"), (4, "HOLDS <1-3>")]),
    ("session", &[(8, "SESSION"), (3, ""), (1, "SESSION KEEP <1-30>")]),
    ("data", &[(12, ""), (3, "DATA d<0-3>"), (1, "DATA <token>")]),
    // Few fences, so that several grants are raised to one.
    ("replicas", &[
        (20, ""), (4, "REPLICAS 1 WITHIN <1-30>"), (1, "REPLICAS 1"), (1, "REPLICAS 2 WITHIN <1-30>"), (1, "REPLICAS <number> WITHIN <number>"),
    ]),
    ("raise", &[(12, ""), (3, "FENCE <fence>"), (1, "FENCE <number>")]),
    ("gt", &[(8, ""), (3, "GT")]),
    ("tie", &[(6, "<session>"), (3, "NOSESSION")]),
    ("block", &[(8, "BLOCK <1-20>"), (1, "BLOCK 0"), (1, ""), (3, "BLOCK <1-20> KEEP <1-30>"), (1, "KEEP <1-30>")]),
    ("place", &[(4, "KEEP <1-50>"), (2, ""), (1, "KEEP <1-50> NOTIFY {a} <token>")]),
    ("how-many", &[(12, ""), (3, "ALL"), (4, "HOLDS <0-2>"), (2, "LEAVE <1-30>"), (1, "LEAVE <number>")]),
    ("waiters", &[(4, ""), (1, "WAITERS <0-20>")]),
    ("count", &[(4, ""), (1, "COUNT <0-200>")]),
    ("effect", &[
        (4, "GRANT <token> <token>"), (2, "DROP <token>"), (1, "ASK"), (1, "<token>"),
    ]),
    ("number", &[
        (8, "<0-3>"), (1, "-1"), (1, "9007199254740991"), (1, "9007199254740992"), (1, "9223372036854775807"),
        (1, "18446744073709551615"), (1, "4294967295"), (1, "4294967296"), (1, "1e400"), (1, "+5"), (1, "007"), (1, "nan"),
    ]),

    ("ttl", &[(1, "TTL"), (1, "PTTL"), (1, "PEXPIRETIME")]),
    ("object", &[(1, "ENCODING"), (1, "IDLETIME"), (1, "REFCOUNT"), (1, "FREQ")]),
    ("expire", &[(4, "PEXPIRE"), (1, "EXPIRE"), (1, "PEXPIREAT")]),
    ("expiry", &[(12, "<0-40>"), (2, "100000"), (1, "-1"), (1, "<1-5> <expire-if>")]),
    ("expire-if", &[(1, "NX"), (1, "XX"), (1, "GT"), (1, "LT")]),
    ("rename", &[(2, "RENAME"), (1, "RENAMENX")]),
    ("copy", &[(2, ""), (2, "REPLACE"), (1, "DB <db>")]),
    ("db", &[(8, "0"), (3, "1"), (1, "2"), (1, "3")]),
    ("restore-ttl", &[(6, "0"), (2, "<1-50>"), (1, "3600000")]),
    ("restore", &[(6, "REPLACE"), (1, ""), (1, "ABSTTL"), (1, "REPLACE IDLETIME <0-9>"), (1, "REPLACE FREQ <0-9>")]),
    ("flush", &[(1, "FLUSHDB"), (1, "FLUSHALL")]),
    ("sync", &[(1, ""), (1, "SYNC")]),
    ("type", &[(3, "redislock"), (1, "string")]),
    ("write-string", &[
        (6, "SET <some-key> <0-9>"), (2, "SET <some-key> <0-9> PX <1-40>"), (2, "SET <some-key> <0-9> NX"),
        (1, "GETSET <some-key> <0-9>"), (1, "GETDEL <some-key>"), (1, "APPEND <some-key> <0-9>"), (1, "INCR <some-key>"),
        (1, "SETRANGE <some-key> <0-99> <0-9>"), (1, "MSET <pair-with-values>"), (1, "BITOP NOT <some-key> <some-key>"),
    ]),
    // The key of the last fence in a file, by other programs.
    ("last-fence", &[
        (3, "SET redis-lock:last-fence: <fence>"), (2, "SET redis-lock:last-fence: 4503599627370496 PXAT 4503599627371"),
        (2, "SET redis-lock:last-fence: <number> PX <1-40>"), (1, "RPUSH redis-lock:last-fence: <0-9>"), (2, "DEL redis-lock:last-fence:"),
        (1, "RENAME <some-key> redis-lock:last-fence:"),
    ]),
    ("pair-with-values", &[(1, "{a}<0-3> 1 {a}x<0-2> 2"), (1, "{b}<0-3> 1 {b}x<0-2> 2")]),
    ("fill", &[(1, "MSET {b}x0 <long> {b}x1 <long> {b}x2 <long>"), (1, "MSET {a}x0 <long> {a}x1 <long> {a}x2 <long>")]),
    // About as long as a server's record of a client.
    ("long", &[
        (1, "<x100><x100><x100><x100><x100><x100>"), (2, "<x100><x100><x100><x100><x100><x100><x100><x40>"),
        (1, "<x100><x100><x100><x100><x100><x100><x100><x100><x40>"),
    ]),
    ("x100", &[(1, "<x40><x40>xxxxxxxxxxxxxxxxxxxx")]),
    ("x40", &[(1, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx")]),
    ("write-collection", &[
        (3, "LPUSH <some-key> <0-9>"), (2, "RPUSH <some-key> <0-9>"), (1, "SADD <some-key> <0-9>"), (1, "HSET <some-key> <0-9> 1"),
        (1, "ZADD <some-key> 1 <0-9>"), (1, "XADD <some-key> MAXLEN 5 * f v"), (1, "SINTERSTORE <some-key> <some-key>"),
        (1, "LMOVE <some-key> <some-key> LEFT RIGHT"), (1, "PFADD <some-key> <0-9>"), (1, "LPOP <some-key>"),
    ]),
    ("read", &[(2, "GET <some-key>"), (1, "LRANGE <some-key> 0 -1"), (1, "STRLEN <some-key>"), (1, "HGETALL <some-key>")]),
    ("blocking-pop", &[(2, "BLPOP <some-key> 0.00<1-9>"), (1, "BLMOVE <some-key> <some-key> LEFT LEFT 0.00<1-9>")]),

    ("end-of-multi", &[(3, "EXEC"), (1, "DISCARD")]),
    ("fcall", &[(3, "FCALL"), (1, "FCALL_RO")]),
    ("function", &[(4, "take"), (3, "look"), (3, "leave"), (2, "hold_both"), (1, "no_such")]),
    ("change-functions", &[
        (6, "FUNCTION LOAD REPLACE <library>"), (1, "FUNCTION DELETE locks"), (1, "FUNCTION FLUSH"), (1, "FUNCTION KILL"),
    ]),
    ("change-scripts", &[(2, "FLUSH SYNC"), (1, "FLUSH ASYNC"), (1, "KILL")]),

    ("unblock", &[(2, ""), (2, "TIMEOUT"), (3, "ERROR")]),
    ("client-type", &[(2, "normal"), (2, "pubsub"), (1, "replica")]),
    ("reply", &[(1, "OFF"), (3, "SKIP"), (6, "ON")]),
    ("on-off", &[(1, "ON"), (1, "OFF")]),
    ("yes-no", &[(1, "YES"), (1, "NO")]),
    ("tracking", &[
        (3, "ON"), (2, "ON BCAST"), (1, "ON NOLOOP"), (1, "ON OPTIN"), (1, "ON OPTOUT"), (1, "ON BCAST PREFIX {a}"),
        (1, "ON REDIRECT <client>"), (4, "OFF"),
    ]),
    ("client-word", &[
        (3, "LIST"), (1, "INFO"), (1, "ID"), (1, "GETNAME"), (2, "SETNAME n<0-9>"), (1, "TRACKINGINFO"), (1, "LIST ID <client>"),
    ]),
    ("rights", &[
        (3, "reset on nopass ~* +@all"), (2, "reset on nopass ~{a}* +@all"), (2, "reset on nopass %R~* +@read +@scripting +eval +eval_ro"),
        (1, "reset on nopass %W~{a}* +@all"), (1, "-lock.acquire"), (1, "-@write"), (1, "resetkeys ~{b}*"), (1, "off"), (1, "on"),
    ]),

    ("setting", &[
        (2, "lock.default-lease <1-300>"), (1, "lock.max-waiters <0-4>"), (3, "lock.max-waiters 10000"),
        (2, "lock.replicas-timeout <1-100>"), (1, "lock.default-keep <1-100>"), (1, "lock.max-tickets <1-4>"), (1, "lock.max-tickets 0"),
        (4, "maxmemory 0"), (2, "maxmemory-policy <policy>"), (3, "maxmemory-clients 0"), (4, "min-replicas-to-write 0"),
        (1, "appendfsync <fsync>"), (1, "aof-use-rdb-preamble <on-off-word>"), (1, "rdbcompression <on-off-word>"),
        (1, "notify-keyspace-events KEA"), (2, "notify-keyspace-events \"\""),
        (1, "lazyfree-lazy-user-del <on-off-word>"), (1, "lazyfree-lazy-expire <on-off-word>"),
        (1, "lazyfree-lazy-server-del <on-off-word>"), (1, "replica-lazy-flush <on-off-word>"),
        (2, "busy-reply-threshold 5000"), (1, "hz <10-100>"),
        (1, "active-expire-effort <1-10>"), (1, "tracking-table-max-keys <1-10>"),
        (1, "client-output-buffer-limit <output-limit>"),
        (1, "no-such-setting 1"),
    ]),
    ("policy", &[(3, "noeviction"), (1, "allkeys-lru"), (1, "volatile-ttl"), (1, "allkeys-random"), (1, "volatile-lfu")]),
    ("fsync", &[(2, "everysec"), (1, "always"), (2, "no")]),
    ("on-off-word", &[(1, "yes"), (1, "no")]),
    ("debug", &[
        (3, "SET-ACTIVE-EXPIRE 0"), (6, "SET-ACTIVE-EXPIRE 1"), (2, "SLEEP 0.00<1-5>"), (3, "OBJECT <key>"),
        (2, "SET-SKIP-CHECKSUM-VALIDATION <0-1>"), (1, "DIGEST-VALUE <key>"), (1, "CHANGE-REPL-ID"), (1, "DIGEST"),
    ]),
    ("section", &[(2, "lock"), (1, "everything"), (1, "memory"), (1, "replication")]),

    ("slot", &[(5, "15495"), (3, "3300"), (1, "7365")]),
    ("node", &[(1, "<own-node>"), (1, "<other-node>")]),
    ("migrate", &[(2, ""), (1, "REPLACE"), (1, "COPY")]),
    ("readonly", &[(1, "READONLY"), (1, "READWRITE")]),
];

/// Like [`RULES`], but a choice is one word with its blanks, and all choices are equally likely.
#[rustfmt::skip]
pub const VERBATIM: &[(&str, &[&str])] = &[
    ("odd-token", &[
        "",
        "\0",
        "a token of 64 bytes: ------------------------------------------",
        "a token of 256 bytes: ---------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------------",
    ]),
    ("output-limit", &["normal 0 0 0", "normal 0 0 0", "normal 20000 0 0"]),
    ("junk", &[
        "", "0", "1", "-1", "2", "*", "PX", "px", "EX", "BLOCK", "SHARED", "LIMIT", "REENTRANT", "SESSION", "ALL", "WAITERS", "COUNT",
        "KEEP", "HOLDS", "PERMITS", "REPLICAS", "WITHIN", "NOTIFY", "NOSESSION", "\0\r\n\u{ff}", "9007199254740992", "18446744073709551616",
    ]),
    ("script", &[
        "return redis.pcall('LOCK.ACQUIRE', KEYS[1], ARGV[1], 'PX', ARGV[2])",
        "redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 'PX', ARGV[2]); return redis.call('LOCK.INFO', KEYS[1])",
        "redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 'SESSION'); return redis.call('LOCK.RELEASE', KEYS[1], ARGV[1])",
        "return redis.pcall('LOCK.ACQUIRE', KEYS[2], ARGV[1], 'SESSION', 'PX', ARGV[2])",
        "return redis.call('LOCK.INFO', KEYS[1])",
        "redis.call('LOCK.WAIT', KEYS[1], ARGV[1]); return redis.call('LOCK.HOT')",
        "return {redis.call('LOCK.CHECK', KEYS[1], ARGV[1]), redis.call('LOCK.CHECK', KEYS[2], ARGV[1])}",
        "return redis.call('LOCK.WAIT', KEYS[1], ARGV[1], 'SHARED', 'PX', ARGV[2])",
        "return redis.pcall('LOCK.EXTEND', KEYS[1], ARGV[1], 'PX', ARGV[2], 'SESSION')",
        "return redis.call('LOCK.RELEASE', KEYS[1], ARGV[1], 'ALL')",
        "return {redis.call('LOCK.CANCEL', KEYS[1], ARGV[1]), redis.call('LOCK.CANCEL', KEYS[2], ARGV[1])}",
        "redis.call('DEL', KEYS[1]); return redis.call('LOCK.MACQUIRE', 2, KEYS[1], KEYS[2], ARGV[1])",
        "redis.setresp(3); return redis.call('LOCK.INFO', KEYS[2], 'WAITERS', 3)",
        "if redis.call('LOCK.CHECK', KEYS[1], ARGV[1]) > 0 then return redis.pcall('INCR', KEYS[2]) end",
        "redis.call('RENAME', KEYS[1], KEYS[2]); return redis.call('LOCK.INFO', KEYS[2])",
        "redis.call('SET', KEYS[1], 1); redis.call('DEL', KEYS[1]); return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1])",
        "return redis.call('LOCK.MRELEASE', 2, KEYS[1], KEYS[2], ARGV[1])",
        "redis.call('SELECT', 1); return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 'PX', ARGV[2])",
        "for i = 1, 200000 do end return redis.call('LOCK.CHECK', KEYS[1], ARGV[1])",
        "redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 'PX', ARGV[2]); error('on purpose')",
        "return this is no script",
    ]),
    ("library", &["#!lua name=locks
        redis.register_function('take', function(keys, args)
            return redis.pcall('LOCK.ACQUIRE', keys[1], args[1], 'PX', args[2], 'SESSION') end)
        redis.register_function{function_name = 'look', flags = {'no-writes'}, callback = function(keys, args)
            return {redis.call('LOCK.INFO', keys[1]), redis.call('LOCK.CHECK', keys[2], args[1])} end}
        redis.register_function('leave', function(keys, args)
            return redis.call('LOCK.MRELEASE', 2, keys[1], keys[2], args[1], 'ALL') end)
        redis.register_function('hold_both', function(keys, args)
            return redis.pcall('LOCK.MACQUIRE', 2, keys[1], keys[2], args[1], 'PX', args[2], 'SHARED') end)
    "]),
];
