//! What of an address is about TLS, and the rest for the client library, which knows neither the files of libpq nor how it verifies.

/// How the server is verified, in libpq's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verify {
    /// `require`: nobody on the way reads along, but anybody may be the server.
    Nothing,
    /// `verify-ca`, and `require` with `sslrootcert`: it is signed by that CA.
    Chain,
    /// `verify-full`: and it has the name that is in the address.
    ChainAndName,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct TlsWanted {
    /// `None`: in clear.
    pub verify: Option<Verify>,
    /// `sslrootcert`
    pub root: Option<String>,
}

/// The address without the words that are about TLS, and what they say.
pub(crate) fn split(url: &str) -> Result<(String, TlsWanted), String> {
    let (mut mode, mut root) = (None, None);
    let mut taken = |key: &str, value: String| {
        match key {
            "sslmode" => mode = Some(value),
            "sslrootcert" => root = Some(value),
            _ => return false,
        }
        true
    };
    let rest = if url.starts_with("postgresql://") || url.starts_with("postgres://") {
        let (front, query) = url.split_once('?').unwrap_or((url, ""));
        let kept = query.split('&').filter(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            !pair.is_empty() && !taken(key, decoded(value))
        });
        let kept = kept.collect::<Vec<_>>().join("&");
        if kept.is_empty() { front.to_owned() } else { format!("{front}?{kept}") }
    } else {
        let kept = words(url).into_iter().filter(|word| !taken(&word.key, word.value.clone()));
        kept.map(|word| word.text).collect::<Vec<_>>().join(" ")
    };
    Ok((rest, wanted(mode.as_deref(), root)?))
}

fn wanted(mode: Option<&str>, root: Option<String>) -> Result<TlsWanted, String> {
    let verify = match (mode, &root) {
        (None | Some("disable" | "prefer" | "allow"), None) => None,
        (None | Some("disable" | "prefer" | "allow"), Some(_)) => {
            return Err("sslrootcert without TLS: write sslmode=verify-full".to_owned());
        }
        (Some("require"), None) => Some(Verify::Nothing),
        (Some("require" | "verify-ca"), Some(_)) => Some(Verify::Chain),
        (Some("verify-full"), Some(_)) => Some(Verify::ChainAndName),
        (Some("verify-ca" | "verify-full"), None) => {
            return Err(
                "sslmode=verify-full wants sslrootcert=/FILE, the certificates of the server's CA".to_owned()
            );
        }
        (Some(_), _) => {
            return Err("sslmode can be disable, prefer (both in clear), require, verify-ca or verify-full"
                .to_owned());
        }
    };
    match &root {
        Some(path) if !path.starts_with('/') => {
            Err("sslrootcert: the whole path of a file is wanted".to_owned())
        }
        Some(_) | None => Ok(TlsWanted { verify, root }),
    }
}

/// `KEY=VALUE` as it stands, and what it says.
struct Word {
    text: String,
    key: String,
    value: String,
}

/// The words of libpq's other form: spaces around `=` do no harm, values may be in quotes, and `\` takes a meaning away.
fn words(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let Some((key, after)) = rest.split_once('=') else {
            // No word: the library says what is wrong with it.
            words.push(Word { text: rest.to_owned(), key: String::new(), value: String::new() });
            break;
        };
        let after = after.trim_start();
        let (value, used) = value(after);
        let begun = rest.len() - after.len();
        words.push(Word { text: rest[..begun + used].to_owned(), key: key.trim().to_owned(), value });
        rest = after[used..].trim_start();
    }
    words
}

/// The value at the front, and how long it is as it stands.
fn value(text: &str) -> (String, usize) {
    let quoted = text.starts_with('\'');
    let (mut value, mut escaped) = (String::new(), false);
    for (at, c) in text.char_indices().skip(usize::from(quoted)) {
        match c {
            _ if escaped => {
                value.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '\'' if quoted => return (value, at + 1),
            c if c.is_whitespace() && !quoted => return (value, at),
            c => value.push(c),
        }
    }
    (value, text.len())
}

/// `%2F` is `/`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).filter(|_| *first == b'%').and_then(|two| std::str::from_utf8(two).ok());
        match hex.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_about_tls_are_taken_out_of_both_forms() {
        let full = |root: &str| TlsWanted { verify: Some(Verify::ChainAndName), root: Some(root.to_owned()) };
        let none = TlsWanted::default;
        for (url, rest, tls) in [
            ("postgresql://u@h/d", "postgresql://u@h/d", none()),
            ("postgresql://u@h/d?sslmode=disable", "postgresql://u@h/d", none()),
            (
                "postgres://h/d?a=1&sslmode=verify-full&b=2&sslrootcert=%2Fca%20x",
                "postgres://h/d?a=1&b=2",
                full("/ca x"),
            ),
            ("host=/run  user = u", "host=/run user = u", none()),
            (
                "host=h sslmode = verify-full sslrootcert='/c\\'a b' user='a b'",
                "host=h user='a b'",
                full("/c'a b"),
            ),
            ("sslrootcert=/a\\ b sslmode=verify-full host=h", "host=h", full("/a b")),
            ("sslmode=require host=h", "host=h", TlsWanted { verify: Some(Verify::Nothing), root: None }),
            (
                "sslmode=require sslrootcert=/x",
                "",
                TlsWanted { verify: Some(Verify::Chain), root: Some("/x".into()) },
            ),
            ("nonsense", "nonsense", none()),
        ] {
            assert_eq!(split(url), Ok((rest.to_owned(), tls)), "{url}");
        }
        for (url, words) in [
            ("host=h sslmode=verify-full", "sslrootcert=/FILE"),
            ("host=h sslrootcert=/x", "without TLS"),
            ("host=h sslmode=always", "verify-full"),
            ("postgresql://h/d?sslmode=verify-full&sslrootcert=ca", "whole path"),
        ] {
            assert!(split(url).unwrap_err().contains(words), "{url}");
        }
    }
}
