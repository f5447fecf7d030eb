//! A connection that is made when it is wanted, and made again when it was lost.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use wire::{
    PageBuffer,
    backoff::Redial,
    handshake::{Handshake, Identity, Wish},
    key::ClusterKey,
};

use crate::{
    address::Address,
    channel::{Call, CallError, Channel, Tuning},
    greet::{ConnectError, greet},
    newest::Mark,
    reader::Handler,
    tls::Tls,
    transport::{SocketStream, Transport},
    waiter::Answered,
};

/// Pauses between attempts. The longest is what a peer that came back waits at the most.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_LONGEST: Duration = Duration::from_secs(5);

/// Who we are, and what we have to prove it.
#[derive(Clone, Debug)]
pub struct Credentials {
    pub me: Identity,
    pub key: ClusterKey,
    /// With it each TCP connection is TLS, and none is without. Unix sockets stay as they are: their bytes leave no machine.
    pub tls: Option<Arc<Tls>>,
}

impl Credentials {
    /// What is told of ourselves with these settings.
    pub(crate) fn identity(&self, tuning: &Tuning) -> Identity {
        Identity { takes: tuning.takes, ..self.me.clone() }
    }
}

/// One who asks a server, over all the connections that he makes one after the other: at the server the newest takes the place of the others.
/// Two who ask the same server on the same lane must not have the same, or each would cut the other's connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instance(u64);

impl Instance {
    /// Takes nobody's place.
    const NONE: Instance = Instance(0);

    /// As which another process asked, which has ended.
    pub fn again(number: u64) -> Instance {
        Instance(number)
    }

    pub fn number(self) -> u64 {
        self.0
    }

    pub fn random() -> Instance {
        // Without the kernel's random numbers there are no connections either.
        crate::random().map(u64::from_le_bytes).map_or(Instance::NONE, |number| Instance(number.max(1)))
    }
}

/// Makes one connection. `handler` gets what the peer asks.
pub fn connect(
    address: &Address,
    credentials: &Credentials,
    wish: Wish,
    handler: Arc<dyn Handler>,
    tuning: &Tuning,
) -> Result<Channel, ConnectError> {
    connect_as(Instance::NONE, (address, wish), credentials, handler, tuning)
}

fn connect_as(
    instance: Instance,
    (address, wish): (&Address, Wish),
    credentials: &Credentials,
    handler: Arc<dyn Handler>,
    tuning: &Tuning,
) -> Result<Channel, ConnectError> {
    let begun = Instant::now();
    let socket = address.connect(tuning.connect_wait)?;
    let socket = SocketStream::new(socket, tuning.waits())?;
    let left = tuning.connect_wait.saturating_sub(begun.elapsed());
    let transport: Box<dyn Transport> = match (&credentials.tls, address.host()) {
        (Some(tls), Some(host)) => Box::new(tls.connect(socket, host, left)?),
        (None, _) | (_, None) => Box::new(socket),
    };
    let me = credentials.identity(tuning);
    let handshake = Handshake::initiate(me, credentials.key.clone(), wish, instance.0, crate::random()?);
    let left = tuning.connect_wait.saturating_sub(begun.elapsed());
    let greeted = match greet(transport.as_ref(), handshake, tuning.limits, left, |_| ()) {
        Ok(greeted) => greeted,
        Err(error) => {
            transport.close();
            return Err(error);
        }
    };
    let (channel, reader) = Channel::start(transport, greeted, handler, tuning, Mark::new(false))?;
    thread::Builder::new().name("net-read".into()).spawn(reader)?;
    Ok(channel)
}

/// Where a client connects to, and how.
#[derive(Clone)]
pub struct Target {
    pub address: Address,
    pub wish: Wish,
    pub credentials: Credentials,
    pub handler: Arc<dyn Handler>,
    pub tuning: Tuning,
}

struct State {
    channel: Option<Arc<Channel>>,
    /// Some caller is at it; the others wait for him.
    connecting: bool,
    redial: Redial,
    why: String,
}

/// Connects at the first call, and again at calls after a loss, with pauses that grow. Requests that were under way at a loss are not
/// repeated: whoever made them knows whether they may be.
pub struct Client {
    target: Target,
    instance: Instance,
    started: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

impl Client {
    pub fn new(target: Target) -> Client {
        Client::of(Instance::random(), target)
    }

    /// One of several ways to the same server, of which one is used at a time.
    pub fn of(instance: Instance, target: Target) -> Client {
        let redial = Redial::new(PAUSE_FIRST, PAUSE_LONGEST);
        let state = State { channel: None, connecting: false, redial, why: String::new() };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Client { target, instance, started: Instant::now(), state, changed }
    }

    /// Asks and waits, with a connection or for one, not beyond the deadline.
    pub fn call(&self, call: Call) -> Result<Answered, CallError> {
        let channel = self.channel(call.deadline)?;
        let answered = channel.call(call)?;
        self.worked();
        Ok(answered)
    }

    /// There was an answer to what was begun at its channel: only that shows that the peer works; see `Redial::worked`.
    pub fn worked(&self) {
        self.state.lock().redial.worked();
    }

    /// Its peer is there, as somebody knows who has heard it: the next attempt to connect waits for nothing.
    pub fn dial_now(&self) {
        self.worked();
        self.changed.notify_all();
    }

    /// The connection, made if there is none.
    pub fn channel(&self, deadline: Instant) -> Result<Arc<Channel>, CallError> {
        let mut state = self.state.lock();
        loop {
            if let Some(channel) = &state.channel {
                if channel.is_open() {
                    return Ok(channel.clone());
                }
                // The loss of one that carried nothing is a failed attempt.
                state.channel = None;
                state.redial.failed(self.started.elapsed(), number());
            }
            let now = Instant::now();
            let may = self.started + state.redial.not_before();
            if !state.connecting && may <= now {
                state.connecting = true;
                let made = parking_lot::MutexGuard::unlocked(&mut state, || self.connect());
                state.connecting = false;
                self.changed.notify_all();
                match made {
                    Ok(channel) => state.channel = Some(Arc::new(channel)),
                    Err(error) => {
                        state.why = error.to_string();
                        let pause = state.redial.failed(self.started.elapsed(), number());
                        tracing::warn!(address = %self.target.address, %error, ?pause, "no connection");
                        // Waiting does not put a wrong key or certificate right.
                        if !error.may_pass() {
                            return Err(self.without(&state, true));
                        }
                    }
                }
                continue;
            }
            let until = if state.connecting { deadline } else { deadline.min(may) };
            if now >= deadline || (!state.connecting && may >= deadline) {
                return Err(self.without(&state, false));
            }
            self.changed.wait_until(&mut state, until);
        }
    }

    /// The connection, if there is one. Waits for nothing.
    pub fn there(&self) -> Option<Arc<Channel>> {
        self.state.lock().channel.clone().filter(|channel| channel.is_open())
    }

    /// As [`Channel::give_back`], if there is a connection.
    pub fn give_back(&self, body: PageBuffer) {
        if let Some(channel) = &self.state.lock().channel {
            channel.give_back(body);
        }
    }

    fn connect(&self) -> Result<Channel, ConnectError> {
        let Target { address, wish, credentials, handler, tuning } = &self.target;
        connect_as(self.instance, (address, *wish), credentials, handler.clone(), tuning)
    }

    fn without(&self, state: &State, refused: bool) -> CallError {
        let why = if state.why.is_empty() { "no time to make one".to_owned() } else { state.why.clone() };
        CallError::NoConnection { address: self.target.address.to_string(), why, refused }
    }
}

/// Spreads attempts; a bad one is as good as any.
fn number() -> u64 {
    crate::random().map(u64::from_le_bytes).unwrap_or(0)
}
