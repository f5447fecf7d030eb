//! Asking a metadata server on its own line, and finding who is on duty at the start of a mount.

use std::sync::Arc;

use net::Answered;
use prost::Message;
use proto::{Request, control};
use types::Ino;
use wire::{frame::Body, handshake::Wish, schema::Lane};

use crate::{
    homes::{Home, Homes},
    line::{Asking, Common, Line, Stop, Waits},
    nodes::Nodes,
    options::RemoteOptions,
};

/// The map, and each server's number of slots in it.
const ANSWER_MAX: u32 = 4 << 20;

/// On a control line.
pub(crate) fn ask_line<R: Request>(
    line: &Line,
    request: &R,
    body: Body,
    waits: Waits,
) -> Result<(R::Answer, Vec<u8>), Stop> {
    let asking = Asking {
        method: R::METHOD,
        meta: request.encode_to_vec().into(),
        body,
        answer_bytes_max: ANSWER_MAX,
    };
    understood::<R>(line.ask(&asking, waits)?)
}

fn understood<R: Request>(answered: Answered) -> Result<(R::Answer, Vec<u8>), Stop> {
    match R::Answer::decode(answered.meta.as_slice()) {
        Ok(answer) => Ok((answer, answered.body.into_vec())),
        Err(_) => Err(Stop::silent("an answer that makes no sense")),
    }
}

/// Who is there, as a mount finds it at its start.
pub(crate) struct Found {
    pub several: bool,
    pub on_duty: Arc<Home>,
    /// Of several: each that was named.
    pub seeds: Vec<Line>,
}

/// Whoever of those that were named answers first says who is on duty.
pub(crate) fn find_duty(
    options: &RemoteOptions,
    common: &Common,
    nodes: &Nodes,
    homes: &Homes,
) -> Result<Found, Stop> {
    let wish = Wish { lane: Lane::Control, node: None };
    let line = Line::new(&options.servers, wish, common);
    let waits = Waits::of(options.patience, options.patience);
    let (_, body) = ask_line(&line, &control::Hello {}, Body::default(), waits)?;
    nodes.take(&body).map_err(|errno| Stop::silent(format!("the cluster map: {errno}")))?;
    Ok(match nodes.owner_of(Ino::ROOT.get()) {
        None => Found { several: false, on_duty: homes.alone(&options.servers), seeds: Vec::new() },
        Some(owner) => {
            let seed = |address: &net::Address| Line::new(std::slice::from_ref(address), wish, common);
            let seeds = options.servers.iter().map(seed).collect();
            Found { several: true, on_duty: homes.of(&owner), seeds }
        }
    })
}
