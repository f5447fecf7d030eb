//! Writing to standard output. A reader that has gone away (`| head`) is not an error.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::exit::{Failure, Outcome};

pub fn print(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    let text = if out.is_terminal() { &plain(text) } else { text };
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::failed(format!("standard output: {error}"))),
    }
}

/// Text for a terminal. Names of files, and what the daemon of a mount of anybody says, may hold its control sequences.
pub fn plain(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n' && c != '\t', "?")
}

/// Prints one JSON document and a newline.
pub fn json(value: &impl Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure::failed(e.to_string()))?;
    print(&format!("{text}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_a_terminal_gets_no_sequences_of_others() {
        assert_eq!(plain("a\tb\u{1b}]0;x\u{7}\r\u{9b}2J\nä\n"), "a\tb?]0;x???2J\nä\n");
    }
}
