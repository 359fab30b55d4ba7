//! Connections to servers, before anything was sent.
//!
//! The redis crate refuses a certificate that both signs itself and names the server, which is what
//! `openssl req -x509` makes. redis-cli accepts it, so TLS is done here.

use std::fs;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use anyhow::{anyhow, Context, Result};
use redis::aio::AsyncStream;
use redis::ConnectionAddr;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::{self, ring, CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::arguments::Tls;

/// A connection to a server.
type Stream = Pin<Box<dyn AsyncStream + Send + Sync>>;

/// A function that connects to a server.
pub type Connector = Arc<dyn Fn(&ConnectionAddr) -> Opening + Send + Sync>;

type Opening = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

/// Returns the function that connects to servers like the one at this address.
pub fn connector(like: &ConnectionAddr, tls: &Tls) -> Result<Connector> {
    let config = match like {
        ConnectionAddr::TcpTls { insecure, .. } => Some(Arc::new(config(tls, *insecure)?)),
        _ => None,
    };
    let sni = tls.sni.clone();
    Ok(Arc::new(move |address| {
        Box::pin(open(address.clone(), config.clone(), sni.clone()))
    }))
}

async fn open(
    address: ConnectionAddr,
    config: Option<Arc<ClientConfig>>,
    sni: Option<String>,
) -> io::Result<Stream> {
    let (host, port) = match address {
        ConnectionAddr::Unix(path) => return Ok(Box::pin(UnixStream::connect(path).await?)),
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => (host, port),
        _ => return Err(io::ErrorKind::Unsupported.into()),
    };
    let stream = TcpStream::connect((host.as_str(), port)).await?;
    stream.set_nodelay(true)?;
    let Some(config) = config else {
        return Ok(Box::pin(stream));
    };
    let name = ServerName::try_from(sni.unwrap_or(host)).map_err(io::Error::other)?;
    let secured = TlsConnector::from(config).connect(name, stream).await;
    Ok(Box::pin(secured.map_err(in_words)?))
}

/// Returns the error of a handshake in words, if rustls has none for it.
fn in_words(error: io::Error) -> io::Error {
    use CertificateError::{Other, UnknownIssuer};
    let cause = error.get_ref().and_then(|it| it.downcast_ref());
    match cause {
        Some(Error::InvalidCertificate(UnknownIssuer | Other(_))) => io::Error::other(
            "the server's certificate isn't among the trusted ones, nor signed by one",
        ),
        _ => error,
    }
}

fn config(tls: &Tls, is_insecure: bool) -> Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions()?;
    let builder = builder.dangerous();
    let builder = builder.with_custom_certificate_verifier(verifier(tls, is_insecure, provider)?);
    match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => {
            let read = PrivateKeyDer::from_pem_slice(&contents(key)?);
            let key = read.map_err(|error| anyhow!("{}: {error}", key.display()))?;
            let config = builder.with_client_auth_cert(certificates(cert)?, key);
            config.with_context(|| cert.display().to_string())
        }
        _ => Ok(builder.with_no_client_auth()),
    }
}

fn verifier(
    tls: &Tls,
    is_insecure: bool,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>> {
    let algorithms = provider.signature_verification_algorithms;
    if is_insecure {
        return Ok(Arc::new(Verifier {
            trusted: None,
            algorithms,
        }));
    }
    let given = match &tls.cacert {
        Some(path) => certificates(path)?,
        None => Vec::new(),
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(match given.is_empty() {
        true => rustls_native_certs::load_native_certs().certs,
        false => given.clone(),
    });
    let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
    let usual = usual.build().context("the certificates to trust")?;
    Ok(Arc::new(Verifier {
        trusted: Some(Trusted { usual, given }),
        algorithms,
    }))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let pem = contents(path)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let read = read.map_err(|error| anyhow!("{}: {error}", path.display()))?;
    match read.is_empty() {
        true => Err(anyhow!("{}: no certificate is in it", path.display())),
        false => Ok(read),
    }
}

fn contents(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| path.display().to_string())
}

/// Trusts some certificates, or every one. The server always proves that it has the certificate's
/// key.
#[derive(Debug)]
struct Verifier {
    /// The trusted certificates, or `None` for every one.
    trusted: Option<Trusted>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// The certificates that the given ones sign, and the given ones themselves, whatever they say of a
/// signer's rights and of the server's name. Only their dates count.
#[derive(Debug)]
struct Trusted {
    usual: Arc<WebPkiServerVerifier>,
    given: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        signers: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(Trusted { usual, given }) = &self.trusted else {
            return Ok(ServerCertVerified::assertion());
        };
        let verified = usual.verify_server_cert(shown, signers, name, ocsp, now);
        verified.or_else(
            |error| match given.contains(shown) && !is_about_dates(&error) {
                true => Ok(ServerCertVerified::assertion()),
                false => Err(error),
            },
        )
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls12_signature(message, cert, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls13_signature(message, cert, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn is_about_dates(error: &Error) -> bool {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    let Error::InvalidCertificate(error) = error else {
        return false;
    };
    matches!(
        error,
        Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. }
    )
}
