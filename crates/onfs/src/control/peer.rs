//! Who is at the other end, as the kernel wrote it down when the connection was made.
//!
//! All of it belongs to that moment and to that process: nothing is looked up by a process number, which may belong to
//! another process by now.

use std::{
    io,
    os::{fd::AsRawFd, unix::net::UnixStream},
};

use rustix::process::Pid;

use super::access::Peer;

/// As many groups as a process may have (NGROUPS_MAX).
const GROUPS_MAX: usize = 65536;

pub fn peer_of(stream: &UnixStream, owner_uid: u32) -> io::Result<Peer> {
    let libc::ucred { pid, uid, gid } = cred_of(stream)?;
    let privileged = uid == 0 || uid == owner_uid;
    Ok(Peer { pid, uid, gid, groups: groups_of(stream)?, privileged })
}

/// `None`: it is not known, or the process has no number here (it is in another container).
pub fn pid_of(stream: &UnixStream) -> Option<Pid> {
    cred_of(stream).ok().and_then(|cred| Pid::from_raw(cred.pid))
}

fn cred_of(stream: &UnixStream) -> io::Result<libc::ucred> {
    let mut cred = [libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX }];
    match read_option(stream, libc::SO_PEERCRED, &mut cred)? {
        1 => Ok(cred[0]),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn groups_of(stream: &UnixStream) -> io::Result<Vec<u32>> {
    let mut room = 64;
    loop {
        let mut groups = vec![0_u32; room];
        match read_option(stream, libc::SO_PEERGROUPS, &mut groups) {
            Ok(count) => {
                groups.truncate(count);
                return Ok(groups);
            }
            Err(error) if error.raw_os_error() == Some(libc::ERANGE) && room < GROUPS_MAX => room *= 4,
            Err(error) => return Err(error),
        }
    }
}

/// Plain numbers, of which any bytes are values.
trait Plain: Copy {}
impl Plain for u32 {}
impl Plain for libc::ucred {}

/// Reads an option of the socket; returns how many values there are.
fn read_option<T: Plain>(stream: &UnixStream, name: libc::c_int, into: &mut [T]) -> io::Result<usize> {
    let room = size_of_val(into);
    let mut bytes = libc::socklen_t::try_from(room).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the kernel writes at most `bytes` bytes, which is the buffer's size, and any bytes are values of a plain
    // type; both pointers are to memory that lives until it returns.
    let done = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, name, into.as_mut_ptr().cast(), &raw mut bytes)
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(bytes as usize / size_of::<T>()) }
}

#[cfg(test)]
mod tests {
    //! Goal: the peer is who connected. Method: a pair of sockets of this process, whose groups are read another way too.
    use super::*;

    #[test]
    fn a_peer_has_the_groups_of_its_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = peer_of(&ours, u32::MAX).unwrap();
        assert_eq!(peer.pid, std::process::id() as i32);
        assert_eq!(
            (peer.uid, peer.gid),
            (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
        );
        let mut own: Vec<u32> =
            rustix::process::getgroups().unwrap().into_iter().map(rustix::process::Gid::as_raw).collect();
        let mut seen = peer.groups;
        own.sort_unstable();
        seen.sort_unstable();
        assert_eq!(seen, own);
    }
}
