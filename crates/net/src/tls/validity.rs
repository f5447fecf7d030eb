//! What of a certificate concerns us beyond what TLS verifies: until when it holds, and whether it is a server's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

/// Who has to renew a certificate hears of it so long before, or for the last third of one that holds shortly.
const WARNED: Duration = Duration::from_secs(30 * 24 * 3600);

/// Seconds since the epoch, as certificates have them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Validity {
    from: i64,
    until: i64,
}

impl Validity {
    /// `None`: it cannot be read.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Validity> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let validity = parsed.validity();
        Some(Validity { from: validity.not_before.timestamp(), until: validity.not_after.timestamp() })
    }

    pub fn has_ended(&self, now: SystemTime) -> bool {
        seconds(now) > self.until
    }

    /// How long it still holds, when that is short.
    pub fn ends_soon(&self, now: SystemTime) -> Option<Duration> {
        let left = u64::try_from(self.until.saturating_sub(seconds(now))).unwrap_or(0);
        let whole = u64::try_from(self.until.saturating_sub(self.from)).unwrap_or(0);
        (left < WARNED.as_secs().min(whole / 3)).then(|| Duration::from_secs(left))
    }
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// May who shows it be a server? Without a stated use it may be anything.
pub(super) fn is_for_servers(certificate: &CertificateDer<'_>) -> bool {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return false };
    match parsed.extended_key_usage() {
        Ok(Some(usage)) => usage.value.any || usage.value.server_auth,
        Ok(None) => true,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_comes_before_the_end() {
        let day = 24 * 3600;
        let at = |days: i64| UNIX_EPOCH + Duration::from_secs((days * day) as u64);
        let left = |validity: Validity, days| validity.ends_soon(at(days)).map(|l| l.as_secs() as i64 / day);
        let year = Validity { from: 100 * day, until: 465 * day };
        assert_eq!((left(year, 100), left(year, 434), left(year, 436)), (None, None, Some(29)));
        assert_eq!((left(year, 465), left(year, 500)), (Some(0), Some(0)));
        assert!(!year.has_ended(at(465)) && year.has_ended(at(466)));
        let short = Validity { from: 100 * day, until: 109 * day };
        assert_eq!((left(short, 105), left(short, 107)), (None, Some(2)));
    }
}
