//! Goal: a bucket of a real server keeps the promises that every back end does, as far as its abilities say. Method: the promises
//! of the `backend` crate, against the server that `tests/bucket` starts.
#![allow(clippy::unwrap_used, reason = "a test")]

mod server;

#[path = "../../backend/tests/promises/mod.rs"]
mod promises;

#[test]
fn a_bucket_keeps_them() {
    let Some(server) = server::Server::find() else { return };
    promises::all(&|name| Box::new(server.bucket(name)));
}
