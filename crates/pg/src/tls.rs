//! TLS to the database: what the library is given to connect with.

use std::{fmt, path::Path, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::address::{TlsWanted, Verify};

#[derive(Clone)]
pub(crate) struct Tls(pub MakeRustlsConnect);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// `None`: in clear. Reads the CA's file.
    pub(crate) fn new(wanted: &TlsWanted) -> Result<Option<Tls>, String> {
        let Some(verify) = wanted.verify else { return Ok(None) };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let chain = match &wanted.root {
            Some(path) => Some(verifier(Path::new(path), &provider)?),
            None => None,
        };
        let config = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS: {error}"))?;
        let config = match (verify, chain) {
            (Verify::ChainAndName, Some(chain)) => config.with_webpki_verifier(chain),
            (Verify::ChainAndName | Verify::Chain | Verify::Nothing, chain) => {
                config.dangerous().with_custom_certificate_verifier(Arc::new(WithoutName { chain, provider }))
            }
        };
        Ok(Some(Tls(MakeRustlsConnect::new(config.with_no_client_auth()))))
    }
}

fn verifier(path: &Path, provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>, String> {
    let wrong = |error: String| format!("sslrootcert {}: {error}", path.display());
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))? {
        let root = root.map_err(|error| wrong(error.to_string()))?;
        roots.add(root).map_err(|error| wrong(error.to_string()))?;
    }
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| wrong(format!("no certificate of a CA: {error}")))
}

/// What `sslmode=require` and `verify-ca` ask for: the chain if there is a CA, and never the name.
#[derive(Debug)]
struct WithoutName {
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for WithoutName {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(own, between, name, ocsp, now) {
            // The name is looked at last, when all else was found good.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, own, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, own, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
