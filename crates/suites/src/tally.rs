//! One line per test case, in the form that `./test` adds up: `ok SUITE/CASE`, `FAIL SUITE/CASE: why`,
//! `skip SUITE/CASE: why`.

use std::process::ExitCode;

/// Counts the cases of one suite and prints each as it ends.
pub struct Tally {
    suite: String,
    failed: u64,
}

impl Tally {
    pub fn new(suite: &str) -> Tally {
        Tally { suite: suite.to_owned(), failed: 0 }
    }

    pub fn pass(&mut self, case: &str) {
        println!("ok {}/{case}", self.suite);
    }

    pub fn fail(&mut self, case: &str, why: &str) {
        self.failed += 1;
        let mut lines = why.lines();
        println!("FAIL {}/{case}: {}", self.suite, lines.next().unwrap_or("no reason given"));
        for line in lines {
            println!("    {line}");
        }
    }

    pub fn skip(&mut self, case: &str, why: &str) {
        println!("skip {}/{case}: {why}", self.suite);
    }

    pub fn record(&mut self, case: &str, outcome: anyhow::Result<()>) {
        match outcome {
            Ok(()) => self.pass(case),
            Err(why) => self.fail(case, &format!("{why:#}")),
        }
    }

    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(u8::from(self.failed > 0))
    }
}
