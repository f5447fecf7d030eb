//! The cluster key, and what is made of it: proofs that somebody has it, and the keys of a connection.
//!
//! 256 random bits, so nothing that was seen on the wire helps to guess it. It is never sent, and never printed.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::frame::SumKey;

pub const KEY_LEN: usize = 32;
pub const PROOF_LEN: usize = 32;
/// What the text of a key begins with; the number is the form's.
const TITLE: &str = "onfs-cluster-key-1 ";
const BLOCK: usize = 64;

/// The secret that all nodes of a cluster have.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey([u8; KEY_LEN]);

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

/// It does not say what was found: that could be most of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "not a cluster key: one line with \"onfs-cluster-key-1\", a space and 64 hexadecimal digits is wanted"
)]
pub struct NoKey;

impl ClusterKey {
    pub const fn new(bytes: [u8; KEY_LEN]) -> ClusterKey {
        ClusterKey(bytes)
    }

    pub fn parse(text: &str) -> Result<ClusterKey, NoKey> {
        let line = text.strip_suffix('\n').unwrap_or(text);
        let digits = line.strip_prefix(TITLE).ok_or(NoKey)?.as_bytes();
        let mut key = [0; KEY_LEN];
        if digits.len() != 2 * KEY_LEN {
            return Err(NoKey);
        }
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |c: u8| char::from(c).to_digit(16).ok_or(NoKey);
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Ok(ClusterKey(key))
    }

    /// What [`ClusterKey::parse`] reads: it belongs in a file that only its owner can read.
    pub fn to_text(&self) -> String {
        let digits: String = self.0.iter().map(|b| format!("{b:02x}")).collect();
        format!("{TITLE}{digits}\n")
    }

    /// An identity for the cluster of those who have this key. It says nothing of the key.
    pub fn cluster_id(&self) -> [u8; 16] {
        let mac: [u8; 32] = self.mac(b"onfs cluster id", &Transcript([0; 32])).finalize().into_bytes().into();
        let mut id = [0; 16];
        id.copy_from_slice(&mac[..16]);
        id
    }

    fn mac(&self, what: &[u8], transcript: &Transcript) -> Hmac<Sha256> {
        // HMAC fills a shorter key with zeros up to the block.
        let mut block = [0; BLOCK];
        block[..KEY_LEN].copy_from_slice(&self.0);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        mac.update(what);
        mac.update(&transcript.0);
        mac
    }

    pub(crate) fn prove(&self, side: Side, transcript: &Transcript) -> [u8; PROOF_LEN] {
        self.mac(side.label(), transcript).finalize().into_bytes().into()
    }

    /// Takes the same time wherever the difference is.
    pub(crate) fn holds(&self, side: Side, transcript: &Transcript, proof: &[u8]) -> bool {
        self.mac(side.label(), transcript).verify_slice(proof).is_ok()
    }

    /// The keys of a connection: of what the initiator sends, and of what the responder sends.
    pub(crate) fn sum_keys(&self, transcript: &Transcript) -> (SumKey, SumKey) {
        let both: [u8; 32] = self.mac(b"onfs wire sums", transcript).finalize().into_bytes().into();
        let (mut forth, mut back) = ([0; 16], [0; 16]);
        forth.copy_from_slice(&both[..16]);
        back.copy_from_slice(&both[16..]);
        (SumKey::new(forth), SumKey::new(back))
    }
}

/// Who made a proof; one side's proof is none of the other's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Initiator,
    Responder,
}

impl Side {
    const fn label(self) -> &'static [u8] {
        match self {
            Side::Initiator => b"onfs wire initiator",
            Side::Responder => b"onfs wire responder",
        }
    }
}

/// Both opening messages as they were on the wire: a proof is of all that they say.
#[derive(Clone, Debug)]
pub(crate) struct Transcript([u8; 32]);

impl Transcript {
    pub(crate) fn new(hello: &[u8], welcome: &[u8]) -> Transcript {
        let mut hash = Sha256::new();
        for message in [hello, welcome] {
            hash.update((message.len() as u64).to_le_bytes());
            hash.update(message);
        }
        Transcript(hash.finalize().into())
    }
}
