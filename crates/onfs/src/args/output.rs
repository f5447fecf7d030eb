//! How data is printed: a flag of every command that prints some.

use clap::Args;

/// How data is printed.
#[derive(Args, Debug, Clone, Copy, Default)]
pub struct Output {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
