//! Tests of `redis-lock` with a server that uses TLS.

mod stage;

use std::fs;
use std::path::PathBuf;

use rcgen::{
    date_time_ymd, BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair,
};
use stage::support::{free_port, until, Expect, Server};
use stage::{outcome, redis_lock, Outcome};
use tempfile::TempDir;

/// A folder with a certificate for 127.0.0.1, its key, and the signer's certificate.
struct Papers {
    dir: TempDir,
}

impl Papers {
    fn new() -> Papers {
        let dir = tempfile::tempdir().expect("a folder");
        let mut params = CertificateParams::new([]).expect("no names");
        // With the same name, the certificate that it signs would look self-signed.
        params.distinguished_name.push(DnType::CommonName, "signer");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let signer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"));
        let signer = signer.expect("a certificate");
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
        let own = params.signed_by(&key, &signer).expect("a certificate");
        let papers = Papers { dir };
        papers.write("ca", signer.pem());
        papers.write("cert", own.pem());
        papers.write("key", key.serialize_pem());
        papers
    }

    /// Returns papers with a certificate that signs itself, may sign others, and names no server.
    /// `openssl req -x509` makes such ones.
    fn signed_by_itself(change: impl FnOnce(&mut CertificateParams)) -> Papers {
        let dir = tempfile::tempdir().expect("a folder");
        let mut params = CertificateParams::new([]).expect("no names");
        params.distinguished_name.push(DnType::CommonName, "redis");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let own = params.self_signed(&key).expect("a certificate").pem();
        let papers = Papers { dir };
        papers.write("ca", own.clone());
        papers.write("cert", own);
        papers.write("key", key.serialize_pem());
        papers
    }

    fn write(&self, name: &str, text: String) {
        fs::write(self.path(name), text).expect("a file");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn word(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Enables TLS on a port of the server, and returns the port, or `None` if the server was built
    /// without TLS.
    fn serve(&self, server: &Server) -> Option<String> {
        if server.call("CONFIG GET tls-port").list().is_empty() {
            return None;
        }
        let (ca, cert, key) = (self.word("ca"), self.word("cert"), self.word("key"));
        let words = [
            "CONFIG",
            "SET",
            "tls-ca-cert-file",
            &ca,
            "tls-cert-file",
            &cert,
            "tls-key-file",
            &key,
        ];
        server.call(&words).okay();
        let port = free_port().to_string();
        server.call(&["CONFIG", "SET", "tls-port", &port]).okay();
        Some(port)
    }
}

#[track_caller]
fn ls(options: &[&str]) -> Outcome {
    outcome(redis_lock(1, &[&["ls"], options].concat()).env_remove("REDIS_LOCK_URL"))
}

#[test]
fn the_server_is_known_by_its_certificate() {
    let (server, papers) = (Server::start(), Papers::new());
    let Some(port) = papers.serve(&server) else {
        eprintln!("this server was built without TLS");
        return;
    };
    let (ca, cert, key) = (papers.word("ca"), papers.word("cert"), papers.word("key"));
    let url = format!("rediss://127.0.0.1:{port}");
    // The server requires a client certificate too.
    let both = [
        "-p", &port, "--tls", "--cacert", &ca, "--cert", &cert, "--key", &key,
    ];
    assert_eq!(ls(&both).code(), 0, "{:?}", ls(&both));
    assert_eq!(ls(&["-p", &port, "--tls", "--cacert", &ca]).code(), 69);
    server.call("CONFIG SET tls-auth-clients no").okay();
    assert_eq!(ls(&["-p", &port, "--tls", "--cacert", &ca]).code(), 0);
    assert_eq!(ls(&["-u", &url, "--cacert", &ca]).code(), 0);
    assert_eq!(ls(&["-p", &port, "--tls", "--insecure"]).code(), 0);
    let unknown = ls(&["-p", &port, "--tls"]);
    assert!(
        unknown.code() == 69 && unknown.err.contains("certificate"),
        "{unknown:?}"
    );
    let run = ["run", "k", "-u", &url, "--cacert", &ca, "--", "true"];
    assert_eq!(outcome(&mut redis_lock(1, &run)).code(), 0);
}

#[test]
fn a_certificate_that_signs_itself_is_known_if_it_is_given() {
    let (server, papers) = (Server::start(), Papers::signed_by_itself(|_| {}));
    let Some(port) = papers.serve(&server) else {
        eprintln!("this server was built without TLS");
        return;
    };
    server.call("CONFIG SET tls-auth-clients no").okay();
    let own = ["-p", &port, "--tls", "--cacert", &papers.word("ca")];
    for call in [&["ls"][..], &["run", "k", "--nb", "--", "true"]] {
        let outcome = outcome(redis_lock(1, &[&own, call].concat()).env_remove("REDIS_LOCK_URL"));
        assert_eq!(outcome.code(), 0, "{outcome:?}");
    }
    // Another one of the same name isn't known, nor is one that the given one would be the key of.
    let others = Papers::signed_by_itself(|_| {});
    let refused = ls(&["-p", &port, "--tls", "--cacert", &others.word("ca")]);
    assert_eq!(refused.code(), 69, "{refused:?}");
    assert!(
        refused.err.contains("isn't among the trusted"),
        "{refused:?}"
    );
    let refused = ls(&["-p", &port, "--tls"]);
    assert_eq!(refused.code(), 69, "{refused:?}");
    let refused = ls(&["-p", &port, "--tls", "--cacert", &papers.word("key")]);
    assert!(
        refused.err.contains("no certificate is in it"),
        "{refused:?}"
    );
}

#[test]
fn a_certificate_that_has_expired_is_refused_even_if_it_is_given() {
    let expire = |params: &mut CertificateParams| params.not_after = date_time_ymd(2020, 1, 1);
    let (server, papers) = (Server::start(), Papers::signed_by_itself(expire));
    let Some(port) = papers.serve(&server) else {
        eprintln!("this server was built without TLS");
        return;
    };
    server.call("CONFIG SET tls-auth-clients no").okay();
    let own = ["-p", &port, "--tls", "--cacert", &papers.word("ca")];
    let refused = ls(&own);
    assert_eq!(refused.code(), 69, "{refused:?}");
    assert!(refused.err.contains("expired"), "{refused:?}");
}

#[test]
fn the_servers_name_is_that_of_its_certificate() {
    let (server, papers) = (Server::start(), Papers::new());
    let Some(port) = papers.serve(&server) else {
        eprintln!("this server was built without TLS");
        return;
    };
    server.call("CONFIG SET tls-auth-clients no").okay();
    let own = [
        "-h",
        "localhost",
        "-p",
        &port,
        "--tls",
        "--cacert",
        &papers.word("ca"),
    ];
    let refused = ls(&own);
    assert_eq!(refused.code(), 69, "{refused:?}");
    assert!(refused.err.contains("not valid for name"), "{refused:?}");
    let named = ls(&[&own[..], &["--sni", "127.0.0.1"]].concat());
    assert_eq!(named.code(), 0, "{named:?}");
}

#[test]
fn the_nodes_of_a_cluster_are_known_as_the_first_is() {
    let server = Server::builder().config("cluster-enabled yes").start();
    let papers = Papers::new();
    let Some(port) = papers.serve(&server) else {
        eprintln!("this server was built without TLS");
        return;
    };
    server.call("CONFIG SET tls-auth-clients no").okay();
    server.call("CONFIG SET tls-cluster yes").okay();
    server
        .call(format!("CONFIG SET cluster-announce-tls-port {port}"))
        .okay();
    server.call("CLUSTER ADDSLOTSRANGE 0 16383").okay();
    until("it serves", || {
        let info = server.call("CLUSTER INFO").text();
        info.contains("cluster_state:ok")
    });
    let (ca, own) = (papers.word("ca"), ["-p", &port, "--tls"]);
    for known in [&["--cacert", &ca][..], &["--insecure"]] {
        let run = [&["run", "k", "--nb"], &own[..], known, &["--", "true"]].concat();
        let run = outcome(redis_lock(1, &run).env_remove("REDIS_LOCK_URL"));
        assert_eq!(run.code(), 0, "{run:?}");
    }
}
