//! The one binary of ONFS: the command line, its configuration, the control protocol and the daemon's life.
//!
//! Invariants: nothing here decides anything about files; it parses, connects, prints and supervises. The parts
//! below are built in one module alone (`assemble`).

pub mod args;
pub mod assemble;
pub mod bench;
pub mod check;
pub mod commands;
pub mod config;
pub mod control;
pub mod daemon;
pub mod demo;
pub mod docs;
pub mod exit;
pub mod guard;
pub mod holders;
pub mod locate;
pub mod monitor;
pub mod mount_call;
pub mod mounts;
pub mod policy;
pub mod render;
pub mod running;
pub mod stage;
pub mod top;
pub mod watched;
