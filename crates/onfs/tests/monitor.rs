//! Goal: the two pages say what the file system says, and who asks slowly or wrongly costs nothing but its own place. Method: a made-up file
//! system behind the real listener, asked over a real socket.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use onfs::{
    control::{ControlError, MoveReport, ProgressSink},
    monitor::{Id, Monitor, Sample},
    running::{MountedFs, UnmountError},
};
use parking_lot::Mutex;

#[derive(Default)]
struct Fake(Mutex<Vec<String>>);

impl MountedFs for Fake {
    fn flush_all(&self, _: bool, _: &mut dyn ProgressSink) -> Result<MoveReport, ControlError> {
        Ok(MoveReport::default())
    }
    fn unmount(&self, _: bool) -> Result<(), UnmountError> {
        Ok(())
    }
    fn abort(&self) {}
    fn wait(&self) {}
    fn sample(&self, sample: &mut Sample) {
        sample.add(Id::OpenFiles, &[], 42);
    }
    fn troubles(&self) -> Vec<String> {
        self.0.lock().clone()
    }
    fn finish(&self) -> Result<(), String> {
        Ok(())
    }
}

fn start(fake: &Arc<Fake>) -> (Monitor, SocketAddr) {
    let monitor = Monitor::start(&"127.0.0.1:0".parse().unwrap(), fake.clone()).unwrap();
    let address = monitor.address().to_string().parse().unwrap();
    (monitor, address)
}

/// Sends it, and reads to the end.
fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn pages_say_what_the_file_system_says() {
    let fake = Arc::new(Fake::default());
    let (monitor, address) = start(&fake);
    let health = "GET /healthz HTTP/1.1\r\n\r\n";
    let metrics = "GET /metrics HTTP/1.1\r\nAccept: */*\r\n\r\n";
    assert!(
        ask(address, health).starts_with("HTTP/1.1 200 ") && ask(address, health).ends_with("\r\n\r\nok\n")
    );
    let text = ask(address, metrics);
    assert!(text.contains("\nonfs_open_files 42\n") && text.contains("\nonfs_healthy 1\n"), "{text}");
    fake.0.lock().extend(["one thing".to_owned(), "another".to_owned()]);
    let text = ask(address, health);
    assert!(text.starts_with("HTTP/1.1 503 ") && text.ends_with("\r\n\r\none thing\nanother\n"), "{text}");
    assert!(ask(address, metrics).contains("\nonfs_healthy 0\n"));
    assert!(ask(address, "HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
    assert!(ask(address, "GET /../etc/passwd HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(ask(address, "DELETE /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    assert!(ask(address, "hello\r\n\r\n").starts_with("HTTP/1.1 400 "));
    drop(monitor);
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn who_never_asks_is_cut() {
    let fake = Arc::new(Fake::default());
    let (_monitor, address) = start(&fake);
    let mut hung: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    // Those beyond the bound at once, the others when their time is over.
    for stream in &mut hung {
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let ended = stream.read(&mut [0; 16]);
        let cut = matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset);
        assert!(cut || matches!(ended, Ok(0)), "{ended:?}");
    }
    // The threads give their places back a moment after the connections ended.
    let answered = (0..600).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        ask(address, "GET /healthz HTTP/1.1\r\n\r\n").contains(" 200 ")
    });
    assert!(answered);
}
