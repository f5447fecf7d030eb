//! Why there is no TLS session, in words that say what to do.

use std::{io, time::Duration};

use rustls::{AlertDescription, CertificateError, PeerIncompatible};
use thiserror::Error;

#[derive(Debug, Error)]
pub enum TlsTrouble {
    #[error("TLS: {0}")]
    Io(#[from] io::Error),
    #[error("the TLS handshake took longer than {0:?}")]
    Slow(Duration),
    #[error("the peer closed the connection in the TLS handshake")]
    Closed,
    /// It speaks our protocol, but in clear.
    #[error(
        "the peer speaks without TLS and this node does not: both need cluster.tls_ca_file, cluster.tls_certificate_file and cluster.tls_key_file"
    )]
    Plain,
    /// It turned us away before anything was said.
    #[error("the peer has no place for another connection now")]
    Busy,
    #[error("the certificate of the peer is refused: {0}")]
    Theirs(String),
    #[error("the peer refuses the certificate of this node: {0}")]
    Ours(&'static str),
    #[error("TLS: {0}")]
    Protocol(rustls::Error),
}

impl TlsTrouble {
    /// Trying again soon is of use: nothing has to be put right by somebody.
    pub fn may_pass(&self) -> bool {
        match self {
            TlsTrouble::Io(_) | TlsTrouble::Slow(_) | TlsTrouble::Closed | TlsTrouble::Busy => true,
            TlsTrouble::Plain | TlsTrouble::Theirs(_) | TlsTrouble::Ours(_) | TlsTrouble::Protocol(_) => {
                false
            }
        }
    }
}

/// The alert of a server that turns somebody away: in clear, fatal, "internal error".
pub(super) const BUSY_ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 80];

/// Do these bytes begin a TLS session?
pub(crate) fn begins_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [22, 3, ..])
}

pub(super) fn in_handshake(error: rustls::Error) -> TlsTrouble {
    if let rustls::Error::AlertReceived(AlertDescription::InternalError) = error {
        return TlsTrouble::Busy;
    }
    after_handshake(error)
}

/// A client learns only after its own handshake that its certificate is refused.
#[expect(clippy::wildcard_enum_match_arm, reason = "the library's errors, which may become more")]
pub(super) fn after_handshake(error: rustls::Error) -> TlsTrouble {
    match error {
        rustls::Error::AlertReceived(alert) => match refused(alert) {
            Some(why) => TlsTrouble::Ours(why),
            None => TlsTrouble::Protocol(rustls::Error::AlertReceived(alert)),
        },
        rustls::Error::InvalidCertificate(why) => TlsTrouble::Theirs(certificate(&why)),
        rustls::Error::NoCertificatesPresented
        | rustls::Error::PeerIncompatible(PeerIncompatible::NoCertificateRequestSignatureSchemesInCommon) => {
            TlsTrouble::Theirs("it shows none".to_owned())
        }
        other => TlsTrouble::Protocol(other),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the library's alerts, which may become more")]
fn refused(alert: AlertDescription) -> Option<&'static str> {
    Some(match alert {
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it is not signed by the CA of the peer: use one of this cluster (onfs cluster certificate)"
        }
        AlertDescription::CertificateExpired => {
            "it has ended, or does not hold yet, by the clock of the peer: make a new one, or put the clocks right"
        }
        AlertDescription::CertificateRequired => "none was shown",
        AlertDescription::CertificateRevoked => "it is revoked",
        AlertDescription::UnsupportedCertificate => {
            "it is not for this purpose: a server needs one that was made without --client"
        }
        AlertDescription::BadCertificate => {
            "it does not have the name under which the peer reaches this node, or it is damaged: make one with that name"
        }
        AlertDescription::CertificateUnknown | AlertDescription::AccessDenied => "the peer does not say why",
        _ => return None,
    })
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the library's errors, which may become more")]
fn certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "it is not signed by the CA of this node (cluster.tls_ca_file)".to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("it has ended ({error}): make a new one, or put the clocks right")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("it does not hold yet ({error}): put the clocks right")
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("it is of another name ({error}): sign one with the name under which the node is reached")
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            format!("it is not for this purpose ({error})")
        }
        other => other.to_string(),
    }
}
