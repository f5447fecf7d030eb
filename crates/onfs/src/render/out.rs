//! Writing to standard output. A reader that has gone away (`| head`) is not an error.

use std::io::{self, Write};

use serde::Serialize;

use crate::exit::{Failure, Outcome};

pub fn print(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::failed(format!("standard output: {error}"))),
    }
}

/// Prints one JSON document and a newline.
pub fn json(value: &impl Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure::failed(e.to_string()))?;
    print(&format!("{text}\n"))
}
