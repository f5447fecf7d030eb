//! The three files of a node, and what rustls makes of them.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::Resumption,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    version::TLS13,
};
use thiserror::Error;

use super::validity::Validity;
use crate::key_file::{self, KeyFileError};

/// A chain of certificates is some kilobytes.
const FILE_MAX: u64 = 256 << 10;

/// Where the files are, all PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// Certificates of the CAs by which others are verified: more than one while a CA is replaced.
    pub ca: PathBuf,
    /// The node's own, with those between it and the CA behind it.
    pub certificate: PathBuf,
    /// Its key, which nobody else may read.
    pub key: PathBuf,
}

#[derive(Debug, Error)]
pub enum TlsFileError {
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Key(#[from] KeyFileError),
    #[error("{path}: {why}", path = path.display())]
    Text { path: PathBuf, why: String },
    #[error("{path}: the certificate has ended: make a new one (onfs cluster certificate)", path = path.display())]
    Ended { path: PathBuf },
}

/// When the files were changed: another means that they are read again.
pub(super) type Stamp = [Option<(u64, u64, i64, i64)>; 3];

pub(super) struct Loaded {
    pub client: Arc<ClientConfig>,
    pub server: Arc<ServerConfig>,
    pub validity: Validity,
}

impl TlsFiles {
    pub(super) fn stamp(&self) -> Stamp {
        [&self.ca, &self.certificate, &self.key].map(|path| {
            let meta = fs::metadata(path).ok()?;
            Some((meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()))
        })
    }

    pub(super) fn load(&self, now: SystemTime) -> Result<Loaded, TlsFileError> {
        let mut roots = RootCertStore::empty();
        for root in certificates(&self.ca)? {
            roots.add(root).map_err(|error| text(&self.ca, error.to_string()))?;
        }
        let roots = Arc::new(roots);
        let chain = certificates(&self.certificate)?;
        let own = chain.first().and_then(Validity::of);
        let validity = own.ok_or_else(|| text(&self.certificate, "no X.509 certificate".to_owned()))?;
        if validity.has_ended(now) {
            return Err(TlsFileError::Ended { path: self.certificate.clone() });
        }
        let secret = key_file::secret(&self.key, FILE_MAX)?;
        let key = PrivateKeyDer::from_pem_slice(secret.as_bytes())
            .map_err(|error| text(&self.key, format!("no private key in PEM: {error}")))?;
        let wrong = |error: rustls::Error| {
            text(&self.certificate, format!("it and the key {} do not fit: {error}", self.key.display()))
        };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let (client, server) = configs(provider, &roots, (chain, key))
            .map_err(|error| error.map_or_else(|why| text(&self.ca, why), wrong))?;
        Ok(Loaded { client: Arc::new(client), server: Arc::new(server), validity })
    }
}

/// The settings of both sides. `Err(Err)`: what is wrong with the CA.
fn configs(
    provider: Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    (chain, key): (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>),
) -> Result<(ClientConfig, ServerConfig), Result<rustls::Error, String>> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        .build()
        .map_err(|error| Err(error.to_string()))?;
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(Ok)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key.clone_key())
        .map_err(Ok)?;
    // A resumed session would not verify certificates again.
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(Ok)?
        .with_root_certificates(roots.clone())
        .with_client_auth_cert(chain, key)
        .map_err(Ok)?;
    client.resumption = Resumption::disabled();
    // One listener, one certificate: the name need not be said in clear.
    client.enable_sni = false;
    Ok((client, server))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let io = |source| TlsFileError::Io { path: path.to_path_buf(), source };
    let mut bytes = Vec::new();
    File::open(path).map_err(io)?.take(FILE_MAX).read_to_end(&mut bytes).map_err(io)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| text(path, format!("no certificate in PEM: {error}")))?;
    if found.is_empty() {
        return Err(text(path, "no certificate in PEM is in it".to_owned()));
    }
    Ok(found)
}

fn text(path: &Path, why: String) -> TlsFileError {
    TlsFileError::Text { path: path.to_path_buf(), why }
}
