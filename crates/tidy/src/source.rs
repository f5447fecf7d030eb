//! Just enough of Rust's grammar: code without comments, literals and test modules. Line breaks are kept.

/// Replaces comments and the insides of string and character literals by blanks.
pub fn strip(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => find(bytes, at, b"\n").unwrap_or(bytes.len()),
            b'/' if bytes[at..].starts_with(b"/*") => block_comment_end(bytes, at),
            b'"' => string_end(bytes, at + 1),
            b'r' | b'b' if !is_word(bytes, at) => match raw_string_end(bytes, at) {
                Some(end) => end,
                None => {
                    out.push(bytes[at]);
                    at += 1;
                    continue;
                }
            },
            b'\'' => match char_end(bytes, at) {
                Some(end) => end,
                None => at + 1,
            },
            byte => {
                out.push(byte);
                at += 1;
                continue;
            }
        };
        out.extend(bytes[at..end].iter().map(|b| if *b == b'\n' { b'\n' } else { b' ' }));
        at = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn is_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_')
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    bytes[from..].windows(what.len()).position(|w| w == what).map(|n| from + n)
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if bytes[at..].starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of `r"..."`, `r#"..."#`, `b"..."` and `br"..."` at `start`, if there is one.
fn raw_string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + usize::from(bytes[start] == b'b');
    let raw = bytes.get(at) == Some(&b'r');
    at += usize::from(raw);
    let hashes = if raw { bytes[at..].iter().take_while(|b| **b == b'#').count() } else { 0 };
    at += hashes;
    if bytes.get(at) != Some(&b'"') {
        return None;
    }
    if !raw {
        return Some(string_end(bytes, at + 1));
    }
    let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    Some(find(bytes, at + 1, &close).map_or(bytes.len(), |end| end + close.len()))
}

/// The end of a character literal; `None` for a lifetime.
fn char_end(bytes: &[u8], start: usize) -> Option<usize> {
    if bytes.get(start + 1) == Some(&b'\\') {
        return find(bytes, start + 3, b"'").map(|end| end + 1);
    }
    // One character, of up to four bytes.
    (start + 2..=start + 5)
        .find(|at| bytes.get(*at) == Some(&b'\''))
        .filter(|at| std::str::from_utf8(&bytes[start + 1..*at]).is_ok_and(|text| text.chars().count() == 1))
        .map(|at| at + 1)
}

/// Takes test modules (`#[cfg(test)] mod name { ... }`) out of stripped code, lines and all.
pub fn without_tests(stripped: &str) -> String {
    let mut out = String::new();
    let mut rest = stripped;
    while let Some(start) = rest.find("#[cfg(test)]") {
        let (before, after) = rest.split_at(start);
        out.push_str(before);
        let body = after["#[cfg(test)]".len()..].trim_start();
        // Further attributes may stand between.
        let item = body.find("mod ").filter(|at| body[..*at].trim().is_empty() || body.starts_with("#["));
        let open = body.find('{');
        match (item, open, body.find(';')) {
            (Some(_), Some(open), semicolon) if semicolon.is_none_or(|s| open < s) => {
                rest = &body[block_end(body, open)..];
            }
            // `#[cfg(test)] mod name;` or another item: only the attribute goes.
            _ => rest = body,
        }
    }
    out.push_str(rest);
    out
}

/// Behind the brace that closes the one at `open`.
pub fn block_end(text: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_comments_go_and_lifetimes_stay() {
        let text = "let a = \"use crate::x;\"; // use crate::y\nfn f<'a>(b: &'a str) -> char { '\"' } /* { */ r#\"}\"#";
        let code = strip(text);
        assert!(!code.contains("crate"), "{code}");
        assert!(code.contains("fn f<'a>(b: &'a str)") || code.contains("fn f< a>(b: & a str)"), "{code}");
        assert_eq!(code.matches('{').count(), code.matches('}').count());
        assert_eq!(code.lines().count(), 2);
    }

    #[test]
    fn test_modules_go() {
        let code = "use a;\n#[cfg(test)]\nmod tests {\n    use b; { }\n}\nfn after() {}\n";
        let rest = without_tests(code);
        assert!(rest.contains("use a") && rest.contains("after") && !rest.contains("use b"), "{rest}");
        assert!(without_tests("#[cfg(test)]\nmod tests;\nfn x() {}").contains("fn x"));
    }
}
