//! A cluster's own CA, and the certificates that it signs. Its key is needed for signing alone, so it can be kept elsewhere.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use thiserror::Error;

use super::files::TlsFiles;
use crate::key_file::{self, KeyFileError};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Ten years: to replace it, all nodes need new files.
const AUTHORITY_HOLDS: Duration = DAY.saturating_mul(3650);
/// Clocks of nodes may differ by so much.
const CLOCKS: Duration = Duration::from_secs(3600);
const FILE_MAX: u64 = 256 << 10;
const CA: &str = "ca.crt";
const CA_KEY: &str = "ca.key";

#[derive(Debug, Error)]
pub enum AuthorityError {
    #[error(transparent)]
    File(#[from] KeyFileError),
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path} is not the certificate and key of a CA: {source}", path = path.display())]
    Ca { path: PathBuf, source: rcgen::Error },
    #[error("a certificate cannot be made: {0}")]
    Made(#[from] rcgen::Error),
}

/// What a certificate is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// To listen, and to connect.
    Server,
    /// To connect only.
    Client,
}

/// A certificate to be signed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Names and numbers by which the node is reached; the first is the file's, too.
    pub names: Vec<String>,
    pub purpose: Purpose,
    pub holds: Duration,
    /// In place of one that is there.
    pub renew: bool,
}

/// Makes the CA's files in a directory in which they are not yet.
pub fn create_authority(dir: &Path, cluster: &str) -> Result<(), AuthorityError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, format!("ONFS cluster {cluster}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    hold(&mut params, AUTHORITY_HOLDS);
    let certificate = params.self_signed(&key)?;
    key_file::write_new(&dir.join(CA_KEY), &key.serialize_pem(), 0o600)?;
    key_file::write_new(&dir.join(CA), &certificate.pem(), 0o644)?;
    Ok(())
}

/// Signs a certificate with the CA in `dir`, and writes it and its key there. The first name must be fit for a file name.
pub fn sign(dir: &Path, wanted: &Wanted) -> Result<TlsFiles, AuthorityError> {
    let ca = dir.join(CA);
    let bad = |source| AuthorityError::Ca { path: ca.clone(), source };
    let text =
        std::fs::read_to_string(&ca).map_err(|source| AuthorityError::Io { path: ca.clone(), source })?;
    let ca_key = KeyPair::from_pem(&key_file::secret(&dir.join(CA_KEY), FILE_MAX)?).map_err(bad)?;
    let issuer = Issuer::from_ca_cert_pem(&text, ca_key).map_err(bad)?;
    let key = KeyPair::generate()?;
    let first = wanted.names.first().map_or("", String::as_str);
    let mut params = CertificateParams::new(wanted.names.clone())?;
    params.distinguished_name.push(DnType::CommonName, first);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = match wanted.purpose {
        Purpose::Server => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        Purpose::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
    };
    params.use_authority_key_identifier_extension = true;
    hold(&mut params, wanted.holds);
    let certificate = params.signed_by(&key, &issuer)?;
    let at = |end: &str| dir.join(format!("{first}.{end}"));
    let files = TlsFiles { ca: ca.clone(), certificate: at("crt"), key: at("key") };
    let write = if wanted.renew { key_file::write_anew } else { key_file::write_new };
    write(&files.key, &key.serialize_pem(), 0o600)?;
    write(&files.certificate, &certificate.pem(), 0o644)?;
    Ok(files)
}

fn hold(params: &mut CertificateParams, length: Duration) {
    let now = SystemTime::now();
    params.not_before = (now - CLOCKS).into();
    params.not_after = (now + length).into();
}
