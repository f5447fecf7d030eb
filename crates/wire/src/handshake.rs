//! Who is at the other end, and in which version we speak: four frames, then the connection's own keys.
//!
//! ```text
//! initiator                                        responder
//!   Hello   {versions, cluster, node, lane, instance, nonce}  ->
//!       <-  Welcome {version, cluster, node, nonce}, proof of the responder
//!   Proof   of the initiator                        ->
//!       <-  Accepted
//! ```
//!
//! A proof is HMAC-SHA256 with the cluster key over the maker's side and both opening messages, so it is good for this connection
//! only, and nobody on the way can have chosen an older version. Either side may say Refusal in place of its message, with a reason.
//!
//! - I-WIRE-3: no frame that is not of the handshake is taken before both sides have proved the key.
//!
//! Protected: a peer without the key can make no request and gets no answer; frames cannot be made, taken from elsewhere,
//! repeated or left out, and headers and metas not changed. Not protected: nothing is secret, and who sits on the way can change
//! bodies (their sum is against accidents). Who has the key can say that he is any node: it is one key. Inside TLS ([`Handshake::takes`]) all
//! that is otherwise, but for the node's number.

use prost::Message;
use thiserror::Error;

use crate::{
    connection::Window,
    frame::{Header, Kind, SumKey},
    key::{ClusterKey, Side, Transcript},
    schema::{Hello, Lane, Reason, Refusal, Welcome},
};

pub const NONCE_LEN: usize = 32;
/// Bytes of a build's name that are shown.
const BUILD_MAX: usize = 64;
/// Of a refusal's text.
const TEXT_MAX: usize = 512;

/// Versions of the wire, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Versions {
    pub min: u16,
    pub max: u16,
}

impl Versions {
    /// What this code speaks.
    pub const OURS: Versions = Versions { min: 1, max: 1 };

    fn common(self, min: u32, max: u32) -> Option<u16> {
        let newest = u32::from(self.max).min(max);
        let fits = newest >= min && newest >= u32::from(self.min);
        // 0 is the handshake's own.
        u16::try_from(newest).ok().filter(|v| fits && *v > 0)
    }
}

/// The roles of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Roles(pub u32);

impl Roles {
    pub const CLIENT: Roles = Roles(1);
    pub const MDS: Roles = Roles(2);
    pub const DS: Roles = Roles(4);
    pub const COORD: Roles = Roles(8);
    pub const MONITOR: Roles = Roles(16);
    /// Beside [`Roles::MDS`]: it keeps copies for other metadata servers, and is given no slots.
    pub const STANDBY_ONLY: Roles = Roles(32);

    pub const fn and(self, other: Roles) -> Roles {
        Roles(self.0 | other.0)
    }

    pub const fn has(self, role: Roles) -> bool {
        self.0 & role.0 == role.0
    }

    pub const fn without(self, role: Roles) -> Roles {
        Roles(self.0 & !role.0)
    }
}

/// What a side says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    pub cluster: [u8; 16],
    pub node: u64,
    pub roles: Roles,
    pub build: String,
    pub versions: Versions,
    /// What it takes of requests that it has not answered.
    pub takes: Window,
}

/// Who the other side is. What it says is as good as the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    pub node: u64,
    pub roles: Roles,
    pub build: String,
    pub takes: Window,
    /// Whose connection it is, over all that he makes one after the other: the newest is in the others' place. 0: he does not say.
    pub instance: u64,
}

/// What both agreed on.
#[derive(Clone, Debug)]
pub struct Session {
    pub version: u16,
    pub lane: Lane,
    pub peer: Peer,
    pub send: SumKey,
    pub receive: SumKey,
}

/// A frame of the handshake to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HandshakeMessage {
    pub kind: Kind,
    pub meta: Vec<u8>,
    pub body: Vec<u8>,
}

impl HandshakeMessage {
    fn new(kind: Kind, meta: &impl Message) -> HandshakeMessage {
        HandshakeMessage { kind, meta: meta.encode_to_vec(), body: Vec::new() }
    }

    pub fn header(&self) -> Header {
        Header::of(self.kind)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum HandshakeError {
    #[error("the peer sent {found:?} where the handshake has another message")]
    Unexpected { found: Kind },
    #[error("the peer's {kind:?} is malformed: {what}")]
    Malformed { kind: Kind, what: &'static str },
    #[error("the peer is of cluster {theirs}, we are of {ours}")]
    Cluster { ours: String, theirs: String },
    #[error("the peer speaks versions {theirs_min} to {theirs_max} of the wire (build {build:?}), we speak {} to {}", ours.min, ours.max)]
    Version { ours: Versions, theirs_min: u32, theirs_max: u32, build: String },
    #[error("the peer has another cluster key")]
    Key,
    #[error("node {found} answered in place of node {wanted}")]
    Node { wanted: u64, found: u64 },
    #[error(
        "the peer says that it is a server, with a certificate for clients: sign one without --client for it"
    )]
    Role,
    #[error("the peer refuses the connection: {text}")]
    Refused { reason: Option<Reason>, text: String },
}

impl HandshakeError {
    /// What the peer is told. `None` when it is the one that refused.
    fn refusal(&self) -> Option<Refusal> {
        let (reason, text) = match self {
            HandshakeError::Refused { .. } => return None,
            HandshakeError::Unexpected { .. } | HandshakeError::Malformed { .. } => {
                (Reason::Malformed, self.to_string())
            }
            HandshakeError::Cluster { ours, theirs } => (
                Reason::Cluster,
                format!(
                    "this node is of cluster {ours}, the peer said {theirs}: has it another cluster's key?"
                ),
            ),
            HandshakeError::Version { ours, theirs_min, theirs_max, .. } => (
                Reason::Version,
                format!(
                    "this node speaks versions {} to {} of the wire, the peer said {theirs_min} to {theirs_max}",
                    ours.min, ours.max
                ),
            ),
            HandshakeError::Key => (Reason::Key, "the cluster keys differ".to_owned()),
            HandshakeError::Node { wanted, .. } => (Reason::Node, format!("node {wanted} was wanted")),
            HandshakeError::Role => {
                (Reason::Tls, "a server needs a certificate that was made without --client".to_owned())
            }
        };
        Some(Refusal { reason: reason.into(), text })
    }

    /// Trying again soon is of use: nothing has to be put right by somebody.
    pub fn may_pass(&self) -> bool {
        matches!(self, HandshakeError::Refused { reason: Some(Reason::Busy), .. })
    }
}

enum State {
    /// Initiator: for the Welcome.
    Welcome {
        hello: Vec<u8>,
        wanted: Option<u64>,
        lane: Lane,
    },
    /// Initiator: for the Accepted.
    Accepted(Session),
    /// Responder: for the Hello.
    Hello {
        nonce: [u8; NONCE_LEN],
    },
    /// Responder: for the Proof.
    Proof {
        transcript: Transcript,
        session: Session,
    },
    Over,
}

/// One side of a handshake.
pub struct Handshake {
    me: Identity,
    key: ClusterKey,
    /// What the peer may say that it is.
    roles: RolesTaken,
    state: State,
    output: Option<HandshakeMessage>,
}

/// What a certificate allows its holder to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RolesTaken {
    All,
    ClientOnly,
}

/// What an initiator wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    pub lane: Lane,
    /// The node that has to answer.
    pub node: Option<u64>,
}

impl Handshake {
    /// `instance` as in [`Peer`]; `nonce` is random, and never used before.
    pub fn initiate(
        me: Identity,
        key: ClusterKey,
        wish: Wish,
        instance: u64,
        nonce: [u8; NONCE_LEN],
    ) -> Handshake {
        let hello = Hello {
            version_min: me.versions.min.into(),
            version_max: me.versions.max.into(),
            cluster: me.cluster.to_vec(),
            node: me.node,
            roles: me.roles.0,
            lane: wish.lane.into(),
            build: shown(&me.build, BUILD_MAX),
            nonce: nonce.to_vec(),
            requests_max: me.takes.requests,
            bytes_max: me.takes.bytes,
            instance,
        };
        let message = HandshakeMessage::new(Kind::Hello, &hello);
        let state = State::Welcome { hello: message.meta.clone(), wanted: wish.node, lane: wish.lane };
        Handshake { me, key, roles: RolesTaken::All, state, output: Some(message) }
    }

    pub fn respond(me: Identity, key: ClusterKey, nonce: [u8; NONCE_LEN]) -> Handshake {
        Handshake { me, key, roles: RolesTaken::All, state: State::Hello { nonce }, output: None }
    }

    /// Refuses a peer that says that it is more.
    pub fn takes(self, roles: RolesTaken) -> Handshake {
        Handshake { roles, ..self }
    }

    /// The next frame to send, in version [`HANDSHAKE_VERSION`](crate::frame::HANDSHAKE_VERSION) with [`SumKey::OPEN`]; after an error too.
    pub fn poll_output(&mut self) -> Option<HandshakeMessage> {
        self.output.take()
    }

    /// A whole frame came. With the session the handshake is over: what is to be sent still is sent, then both directions switch.
    pub fn handle(
        &mut self,
        header: &Header,
        meta: &[u8],
        body: &[u8],
    ) -> Result<Option<Session>, HandshakeError> {
        let state = std::mem::replace(&mut self.state, State::Over);
        let done = self.step(state, header.kind, meta, body);
        if let Err(error) = &done {
            self.output = error.refusal().map(|refusal| HandshakeMessage::new(Kind::Refusal, &refusal));
        }
        done
    }

    fn step(
        &mut self,
        state: State,
        kind: Kind,
        meta: &[u8],
        body: &[u8],
    ) -> Result<Option<Session>, HandshakeError> {
        if kind == Kind::Refusal {
            return Err(refused(meta));
        }
        match (state, kind) {
            (State::Welcome { hello, wanted, lane }, Kind::Welcome) => {
                self.welcomed(&hello, wanted, lane, (meta, body))?;
                Ok(None)
            }
            (State::Accepted(session), Kind::Accepted) => Ok(Some(session)),
            (State::Hello { nonce }, Kind::Hello) => {
                self.greeted(&nonce, meta)?;
                Ok(None)
            }
            (State::Proof { transcript, session }, Kind::Proof) => {
                if !self.key.holds(Side::Initiator, &transcript, body) {
                    return Err(HandshakeError::Key);
                }
                self.output =
                    Some(HandshakeMessage { kind: Kind::Accepted, meta: Vec::new(), body: Vec::new() });
                Ok(Some(session))
            }
            (
                State::Welcome { .. }
                | State::Accepted(_)
                | State::Hello { .. }
                | State::Proof { .. }
                | State::Over,
                found,
            ) => Err(HandshakeError::Unexpected { found }),
        }
    }

    fn welcomed(
        &mut self,
        hello: &[u8],
        wanted: Option<u64>,
        lane: Lane,
        (meta, body): (&[u8], &[u8]),
    ) -> Result<(), HandshakeError> {
        let bad = |what| HandshakeError::Malformed { kind: Kind::Welcome, what };
        let welcome = Welcome::decode(meta).map_err(|_| bad("no such message"))?;
        self.same_cluster(&welcome.cluster)?;
        let version = self.me.versions.common(welcome.version, welcome.version).ok_or_else(|| {
            let build = shown(&welcome.build, BUILD_MAX);
            let said = welcome.version;
            HandshakeError::Version { ours: self.me.versions, theirs_min: said, theirs_max: said, build }
        })?;
        if welcome.nonce.len() != NONCE_LEN {
            return Err(bad("nonce length"));
        }
        // The key first: what else the peer says is worth nothing without it.
        let transcript = Transcript::new(hello, meta);
        if !self.key.holds(Side::Responder, &transcript, body) {
            return Err(HandshakeError::Key);
        }
        if let Some(wanted) = wanted.filter(|w| *w != welcome.node) {
            return Err(HandshakeError::Node { wanted, found: welcome.node });
        }
        let peer = Peer {
            node: welcome.node,
            roles: Roles(welcome.roles),
            build: shown(&welcome.build, BUILD_MAX),
            takes: Window { requests: welcome.requests_max, bytes: welcome.bytes_max },
            instance: 0,
        };
        let (send, receive) = self.key.sum_keys(&transcript);
        let proof = self.key.prove(Side::Initiator, &transcript).to_vec();
        self.output = Some(HandshakeMessage { kind: Kind::Proof, meta: Vec::new(), body: proof });
        self.state = State::Accepted(Session { version, lane, peer, send, receive });
        Ok(())
    }

    fn greeted(&mut self, nonce: &[u8; NONCE_LEN], meta: &[u8]) -> Result<(), HandshakeError> {
        let bad = |what| HandshakeError::Malformed { kind: Kind::Hello, what };
        let hello = Hello::decode(meta).map_err(|_| bad("no such message"))?;
        self.same_cluster(&hello.cluster)?;
        let version = self.me.versions.common(hello.version_min, hello.version_max).ok_or_else(|| {
            HandshakeError::Version {
                ours: self.me.versions,
                theirs_min: hello.version_min,
                theirs_max: hello.version_max,
                build: shown(&hello.build, BUILD_MAX),
            }
        })?;
        if self.roles == RolesTaken::ClientOnly && !Roles::CLIENT.has(Roles(hello.roles)) {
            return Err(HandshakeError::Role);
        }
        let lane = Lane::try_from(hello.lane).map_err(|_| bad("lane"))?;
        if hello.nonce.len() != NONCE_LEN {
            return Err(bad("nonce length"));
        }
        let welcome = Welcome {
            version: version.into(),
            cluster: self.me.cluster.to_vec(),
            node: self.me.node,
            roles: self.me.roles.0,
            build: shown(&self.me.build, BUILD_MAX),
            nonce: nonce.to_vec(),
            requests_max: self.me.takes.requests,
            bytes_max: self.me.takes.bytes,
        };
        let mut message = HandshakeMessage::new(Kind::Welcome, &welcome);
        let transcript = Transcript::new(meta, &message.meta);
        message.body = self.key.prove(Side::Responder, &transcript).to_vec();
        let peer = Peer {
            node: hello.node,
            roles: Roles(hello.roles),
            build: shown(&hello.build, BUILD_MAX),
            takes: Window { requests: hello.requests_max, bytes: hello.bytes_max },
            instance: hello.instance,
        };
        let (receive, send) = self.key.sum_keys(&transcript);
        self.output = Some(message);
        self.state = State::Proof { transcript, session: Session { version, lane, peer, send, receive } };
        Ok(())
    }

    fn same_cluster(&self, theirs: &[u8]) -> Result<(), HandshakeError> {
        if theirs == self.me.cluster {
            return Ok(());
        }
        let hex = |bytes: &[u8]| bytes.iter().take(16).map(|b| format!("{b:02x}")).collect();
        Err(HandshakeError::Cluster { ours: hex(&self.me.cluster), theirs: hex(theirs) })
    }
}

/// The frame that turns somebody away who was not asked anything yet.
pub fn refusal(reason: Reason, text: &str) -> HandshakeMessage {
    HandshakeMessage::new(Kind::Refusal, &Refusal { reason: reason.into(), text: shown(text, TEXT_MAX) })
}

fn refused(meta: &[u8]) -> HandshakeError {
    match Refusal::decode(meta) {
        Ok(refusal) => HandshakeError::Refused {
            reason: Reason::try_from(refusal.reason).ok(),
            text: shown(&refusal.text, TEXT_MAX),
        },
        Err(_) => HandshakeError::Malformed { kind: Kind::Refusal, what: "no such message" },
    }
}

/// Text of a peer, fit for a log: at most `max` bytes, and nothing that moves a cursor.
fn shown(text: &str, max: usize) -> String {
    let mut shown = String::new();
    for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if shown.len() + c.len_utf8() > max {
            break;
        }
        shown.push(c);
    }
    shown
}
