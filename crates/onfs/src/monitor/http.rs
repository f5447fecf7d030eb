//! As much of HTTP as a monitoring system needs: which of the two pages is asked for, and an answer after which the connection ends.
//!
//! Pure: bytes in, bytes out.

/// A request's line and headers; nobody who scrapes needs more.
pub(super) const HEAD_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Page {
    Metrics,
    Health,
}

/// What the bytes so far ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// More is to come.
    Part,
    Page {
        page: Page,
        body: bool,
    },
    Wrong(Status),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Status {
    Ok,
    BadRequest,
    NotFound,
    NotAllowed,
    TooLarge,
    Failed,
    Unavailable,
}

impl Status {
    const fn line(self) -> &'static str {
        match self {
            Status::Ok => "200 OK",
            Status::BadRequest => "400 Bad Request",
            Status::NotFound => "404 Not Found",
            Status::NotAllowed => "405 Method Not Allowed",
            Status::TooLarge => "431 Request Header Fields Too Large",
            Status::Failed => "500 Internal Server Error",
            Status::Unavailable => "503 Service Unavailable",
        }
    }
}

pub(super) fn asked(bytes: &[u8]) -> Asked {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_MAX => return Asked::Part,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Asked::Wrong(Status::TooLarge);
        }
        Err(_) => return Asked::Wrong(Status::BadRequest),
    }
    let body = match request.method {
        Some("GET") => true,
        Some("HEAD") => false,
        Some(_) | None => return Asked::Wrong(Status::NotAllowed),
    };
    let path = request.path.unwrap_or_default();
    match path.split_once('?').map_or(path, |(path, _)| path) {
        "/metrics" => Asked::Page { page: Page::Metrics, body },
        "/healthz" => Asked::Page { page: Page::Health, body },
        _ => Asked::Wrong(Status::NotFound),
    }
}

pub(super) const PLAIN: &str = "text/plain; charset=utf-8";
pub(super) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Without the text for who asked for the head alone.
pub(super) fn answer(status: Status, kind: &str, text: &str, body: bool) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
        status.line(),
        text.len()
    );
    let mut bytes = head.into_bytes();
    if body {
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

/// The answer to what is none of the pages.
pub(super) fn refusal(status: Status) -> Vec<u8> {
    let text = format!("{}: GET /metrics or /healthz\n", status.line());
    answer(status, PLAIN, &text, true)
}

#[cfg(test)]
mod tests {
    //! Goal: the two pages are found, and nothing else is answered with them. Method: requests, whole, in part and wrong.
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        let page = |page, body| Asked::Page { page, body };
        let many: String = (0..HEADERS_MAX + 1).map(|n| format!("h{n}: x\r\n")).collect();
        let cases: &[(&str, Asked)] = &[
            ("", Asked::Part),
            ("GET /metrics HT", Asked::Part),
            ("GET /metrics HTTP/1.1\r\nHost: h\r\n", Asked::Part),
            ("GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n", page(Page::Metrics, true)),
            ("GET /metrics?name=x HTTP/1.0\r\n\r\n", page(Page::Metrics, true)),
            ("HEAD /healthz HTTP/1.1\r\n\r\n", page(Page::Health, false)),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", Asked::Wrong(Status::NotFound)),
            ("GET / HTTP/1.1\r\n\r\n", Asked::Wrong(Status::NotFound)),
            ("POST /metrics HTTP/1.1\r\n\r\n", Asked::Wrong(Status::NotAllowed)),
            ("\0\0\0\0", Asked::Wrong(Status::BadRequest)),
            (&format!("GET /metrics HTTP/1.1\r\n{many}\r\n"), Asked::Wrong(Status::TooLarge)),
            (&format!("GET /{} HTTP/1.1\r\n", "x".repeat(HEAD_MAX)), Asked::Wrong(Status::TooLarge)),
        ];
        for (text, expected) in cases {
            assert_eq!(asked(text.as_bytes()), *expected, "{text}");
        }
    }

    #[test]
    fn answers_say_how_long_they_are() {
        let whole = String::from_utf8(answer(Status::Unavailable, PLAIN, "no\n", true)).unwrap();
        assert!(whole.starts_with("HTTP/1.1 503 ") && whole.ends_with("\r\n\r\nno\n"), "{whole}");
        assert!(whole.contains("\r\nContent-Length: 3\r\n"));
        assert!(answer(Status::Ok, PLAIN, "no\n", false).ends_with(b"\r\n\r\n"));
    }
}
