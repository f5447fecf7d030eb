//! A metadata server and data servers of a test, and sessions that ask them as a client does.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cluster::striping::Striped;
use kv::MetaStore;
use mds::{Mds, MdsOptions};
use net::{Address, Bounds, Client, Server, Tuning};
use proto::{
    Head, Layout, Request, SessionId,
    attr::{Attr, Caller, Changes},
    control::{Mount, Mounted, NodeReport},
    data::{Read, Sync, Write},
    metadata::*,
};
use serve::{
    MetadataService,
    metadata::{MetadataOptions, SessionLimits},
    reporting::Reporter,
};
use types::Errno;
use wire::schema::{Fault, Lane};

use super::{DataSite, ask, client_to, credentials, state::State, until};

pub const META: u64 = 100;

struct Running {
    mds: Arc<Mds>,
    store: Arc<MetaStore>,
    service: Arc<MetadataService>,
    /// None: it is being killed.
    server: Option<Server>,
}

pub struct Site {
    dir: tempfile::TempDir,
    state: State,
    pub options: MetadataOptions,
    running: Option<Running>,
    pub data: Vec<DataSite>,
    reporters: Vec<Option<Reporter>>,
}

/// Short waits: nothing here is far away.
pub fn options() -> MetadataOptions {
    MetadataOptions {
        sessions: SessionLimits { silence: Duration::from_secs(20), ..SessionLimits::default() },
        node_silence: Duration::from_secs(2),
        patience: Duration::from_secs(1),
        report: Duration::from_millis(50),
        ..MetadataOptions::default()
    }
}

impl Site {
    pub fn new(data: u64) -> Site {
        Site::with(data, options())
    }

    pub fn with(data: u64, options: MetadataOptions) -> Site {
        Site::of((1..=data).map(DataSite::started).collect(), options)
    }

    /// With data servers that were started.
    pub fn of(data: Vec<DataSite>, options: MetadataOptions) -> Site {
        let dir = tempfile::tempdir().unwrap();
        let reporters = data.iter().map(|_| None).collect();
        let mut site = Site { dir, state: State::new(), options, running: None, data, reporters };
        site.start();
        for n in 0..site.data.len() {
            site.report(n);
        }
        site.wait_for(site.data.len());
        site
    }

    /// A data server that comes later.
    pub fn add_data(&mut self, data: DataSite) {
        self.data.push(data);
        self.reporters.push(None);
        self.report(self.data.len() - 1);
        self.wait_for(self.data.len());
    }

    pub fn wait_for(&self, nodes: usize) {
        until("the data servers report", || self.service().nodes().measures().len() == nodes);
    }

    pub fn start(&mut self) {
        let store = self.state.open(&self.dir.path().join("meta"));
        let mds = Arc::new(Mds::new(store.clone(), MdsOptions::default()).unwrap());
        let service =
            MetadataService::start(mds.clone(), store.clone(), credentials(META), self.options.clone())
                .unwrap();
        let server = Server::start(
            &self.address(),
            credentials(META),
            service.clone(),
            Tuning::default(),
            Bounds::default(),
        )
        .unwrap();
        self.running = Some(Running { mds, store, service, server: Some(server) });
    }

    /// Ends without a word to anybody, as a kill does.
    pub fn kill(&mut self) {
        self.state.kill();
        self.stop();
    }

    /// As `kill`, and nobody is told by it: otherwise it answers for a moment that its store is dead.
    pub fn vanish(&mut self) {
        drop(self.running.as_mut().unwrap().server.take());
        self.kill();
    }

    /// Its machine dies, and what was not made durable is gone.
    pub fn power_cut(&mut self) {
        self.state.power_cut();
        self.stop();
        self.start();
        self.wait_for(self.data.len());
    }

    fn stop(&mut self) {
        let Running { mds, store, service, server } = self.running.take().unwrap();
        // First, or what is due would be done meanwhile.
        service.shutdown();
        drop(server);
        drop(service);
        drop(mds);
        let _ = store.close();
    }

    pub fn address(&self) -> Address {
        let path: PathBuf = self.dir.path().join("socket");
        format!("unix:{}", path.display()).parse().unwrap()
    }

    pub fn service(&self) -> &Arc<MetadataService> {
        &self.running.as_ref().unwrap().service
    }

    pub fn mds(&self) -> &Arc<Mds> {
        &self.running.as_ref().unwrap().mds
    }

    /// It goes on, and nobody but its clients hears of it.
    pub fn cut_off_data(&mut self, n: usize) {
        self.reporters[n] = None;
    }

    pub fn report(&mut self, n: usize) {
        let data = &self.data[n];
        let about = NodeReport {
            node: data.node,
            name: format!("data-{}", data.node),
            addresses: vec![data.shown().to_string()],
            ..NodeReport::default()
        };
        let client = client_to(&self.address(), META, Lane::Control);
        self.reporters[n] = Some(Reporter::start(data.service().clone(), client, about).unwrap());
    }

    /// Why its last report was not taken.
    pub fn trouble(&self, n: usize) -> Option<serve::reporting::Trouble> {
        self.reporters[n].as_ref().and_then(Reporter::trouble)
    }

    /// A data server dies.
    pub fn kill_data(&mut self, n: usize) {
        self.reporters[n] = None;
        self.data[n].kill();
    }

    /// The machine of a data server dies.
    pub fn power_cut_data(&mut self, n: usize) {
        self.reporters[n] = None;
        self.data[n].power_cut();
        self.report(n);
        let node = self.data[n].node;
        until("it reports", || self.service().nodes().measures().contains_key(&cluster::NodeId(node)));
    }

    /// Its machine is started again in the middle of its work, and the journal is whole.
    pub fn lose_memory_of_data(&mut self, n: usize) {
        self.reporters[n] = None;
        self.data[n].reboot();
        self.report(n);
        let node = self.data[n].node;
        until("it reports", || self.service().nodes().measures().contains_key(&cluster::NodeId(node)));
    }

    pub fn start_data(&mut self, n: usize) {
        self.data[n].start();
        self.report(n);
        let node = self.data[n].node;
        until("it reports", || self.service().nodes().measures().contains_key(&cluster::NodeId(node)));
    }

    pub fn session(&self) -> Session {
        static LAST: AtomicU64 = AtomicU64::new(1);
        let id = SessionId(u128::from(LAST.fetch_add(1, Ordering::Relaxed)));
        let session = Session::over(self, id);
        session.mount();
        session
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.reporters.clear();
        if self.running.is_some() {
            self.kill();
        }
    }
}

/// One mount, with numbers and connections of its own.
pub struct Session {
    pub id: SessionId,
    pub meta: Client,
    pub control: Client,
    data: Vec<(u64, Client)>,
    number: AtomicU64,
}

pub type Answer<A> = Result<A, Errno>;

fn errno(fault: &Fault) -> Errno {
    Errno::from_raw(fault.errno)
}

impl Session {
    pub fn over(site: &Site, id: SessionId) -> Session {
        Session {
            id,
            meta: client_to(&site.address(), META, Lane::Metadata),
            control: client_to(&site.address(), META, Lane::Control),
            data: site.data.iter().map(|data| (data.node, data.client())).collect(),
            number: AtomicU64::new(1),
        }
    }

    pub fn mount(&self) -> Mounted {
        let head = Some(Head::of(self.id));
        ask(&self.control, &Mount { head, host: "test".into(), ..Mount::default() }, &[], 0).unwrap().0
    }

    /// Of the next operation.
    pub fn op(&self) -> Option<Head> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        Some(Head::operation(self.id, number, number))
    }

    pub fn head(&self) -> Option<Head> {
        Some(Head::of(self.id))
    }

    pub fn try_ask<R: Request>(&self, request: &R) -> Answer<R::Answer> {
        ask(&self.meta, request, &[], 0).map(|(answer, _)| answer).map_err(|fault| errno(&fault))
    }

    pub fn fault<R: Request>(&self, request: &R) -> Fault {
        ask(&self.meta, request, &[], 0).err().unwrap()
    }

    pub fn caller() -> Option<Caller> {
        Some(Caller { uid: 0, gid: 0, umask: 0 })
    }

    pub fn create(&self, name: &str, opening: u64) -> Answer<Attr> {
        let name = name.as_bytes().to_vec();
        let (head, caller) = (self.op(), Self::caller());
        let create = Create { head, caller, dir: 1, name, mode: 0o644, opening, write: true };
        self.try_ask(&create).map(|opened| opened.attr.unwrap())
    }

    pub fn lookup(&self, name: &str) -> Answer<Attr> {
        let lookup = Lookup { head: self.head(), dir: 1, name: name.as_bytes().to_vec() };
        self.try_ask(&lookup).map(|entry| entry.attr.unwrap())
    }

    pub fn open(&self, ino: u64, opening: u64, write: bool) -> Answer<Opened> {
        self.try_ask(&Open { head: self.op(), ino, opening, write, keep: false, again: false })
    }

    pub fn close(&self, opening: u64) {
        self.try_ask(&Close { head: self.op(), opening, atime: None, ino: 0 }).unwrap();
    }

    pub fn attr(&self, ino: u64) -> Answer<Attr> {
        self.try_ask(&GetAttr { head: self.head(), ino }).map(|entry| entry.attr.unwrap())
    }

    pub fn set_size(&self, ino: u64, size: u64, grow_only: bool) -> Answer<Attr> {
        let changes = Some(Changes { size: Some(size), ..Changes::default() });
        self.try_ask(&SetAttr { head: self.op(), ino, changes, grow_only }).map(|entry| entry.attr.unwrap())
    }

    pub fn unlink(&self, name: &str) -> Answer<()> {
        let unlink = Unlink { head: self.op(), dir: 1, name: name.as_bytes().to_vec() };
        self.try_ask(&unlink).map(drop)
    }

    pub fn begin(&self, ino: u64, opening: u64) -> Answer<Layout> {
        self.try_ask(&BeginWrite { head: self.op(), ino, opening }).map(|begun| begun.layout.unwrap())
    }

    fn data(&self, node: u64) -> &Client {
        &self.data.iter().find(|(n, _)| *n == node).unwrap().1
    }

    /// As a client writes: each part to the server of its stripe.
    pub fn write(&self, ino: u64, layout: &Layout, offset: u64, bytes: &[u8]) {
        let striped = Striped::new(layout.unit, layout.stripes.len()).unwrap();
        for part in striped.parts(offset, bytes.len() as u64) {
            let object = Some(layout.object(ino, part.stripe));
            let write = Write { object, offset: part.object_offset, sync: false, joined: 0, server: 0 };
            let from = (part.offset - offset) as usize;
            let piece = &bytes[from..from + part.len as usize];
            let client = self.data(layout.stripes[part.stripe]);
            for (at, chunk) in piece.chunks(4 << 20).enumerate() {
                let write = Write { offset: write.offset + (at as u64) * (4 << 20), ..write };
                assert_eq!(ask(client, &write, chunk, 0).unwrap().0.bytes as usize, chunk.len());
            }
        }
    }

    pub fn sync(&self, ino: u64, layout: &Layout) {
        for (stripe, node) in layout.stripes.iter().enumerate() {
            let object = Some(layout.object(ino, stripe));
            ask(self.data(*node), &Sync { object }, &[], 0).unwrap();
        }
    }

    /// As a client reads, up to `size`: what a server does not have is zeros.
    pub fn read(&self, ino: u64, layout: &Layout, size: u64) -> Vec<u8> {
        let striped = Striped::new(layout.unit, layout.stripes.len()).unwrap();
        let mut bytes = vec![0; size as usize];
        for part in striped.parts(0, size) {
            let mut done = 0;
            while done < part.len {
                let length = (part.len - done).min(4 << 20) as u32;
                let object = Some(layout.object(ino, part.stripe));
                let read = Read { object, offset: part.object_offset + done, length };
                let (_, body) = ask(self.data(layout.stripes[part.stripe]), &read, &[], length).unwrap();
                let at = (part.offset + done) as usize;
                bytes[at..at + body.len()].copy_from_slice(&body);
                done += u64::from(length);
            }
        }
        bytes
    }
}
