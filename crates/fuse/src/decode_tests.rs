//! Goal: requests decode to what the kernel meant, and nothing that is not a request decodes at all or panics.
//! Method: requests as bytes, in both forms (joined as from /dev/fuse, split as in a ring entry); [`fuzzing`].

use fuzzing::{as_it_is, fuzz};

use super::*;
use crate::operation::Forgotten;

/// Decodes in both forms, and checks that they agree.
fn both<'a>(
    opcode: u32,
    joined: &'a [u8],
    fixed_len: usize,
    ring: &'a mut [u8; 128],
    dialect: Dialect,
) -> Result<Operation<'a>, Errno> {
    ring[..fixed_len].copy_from_slice(&joined[..fixed_len]);
    let split = operation(opcode, Body::Split { fixed: ring, rest: &joined[fixed_len..] }, dialect);
    let whole = operation(opcode, Body::Joined(joined), dialect);
    assert_eq!(whole, split);
    whole
}

fn check(opcode: u32, joined: &[u8], fixed_len: usize, expected: Operation<'_>) {
    let mut ring = [0xaa; 128];
    assert_eq!(both(opcode, joined, fixed_len, &mut ring, Dialect::default()), Ok(expected));
}

fn bytes(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

#[test]
fn golden_header() {
    let golden: [u8; 40] = [
        45, 0, 0, 0, 1, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 2, 0, 0, 0, 0, 1, 0, 0, 0xe8, 3, 0, 0, 0xe9, 3, 0,
        0, 77, 0, 0, 0, 2, 0, 0, 0,
    ];
    let wire: abi::InHeader = abi::read(&golden).unwrap();
    assert_eq!((wire.len, wire.total_extlen), (45, 2));
    let expected = Header {
        unique: 0x0102_0304_0506_0708,
        node: 0x100_0000_0002,
        uid: 1000,
        gid: 1001,
        pid: 77,
        opcode: op::LOOKUP,
    };
    assert_eq!(header(&wire), expected);
}

#[test]
fn golden_names() {
    check(op::LOOKUP, b"hello\0", 0, Operation::Lookup { name: b"hello" });
    check(op::UNLINK, b"..\0", 0, Operation::Unlink { name: b".." });
    check(op::SYMLINK, b"a\0/b/c\0", 0, Operation::Symlink { name: b"a", target: b"/b/c" });
    check(op::REMOVEXATTR, b"user.a/b\0", 0, Operation::Removexattr { name: b"user.a/b" });
    let mkdir = bytes(&[&[0xed, 1, 0, 0, 0x12, 0, 0, 0], b"d\0"]);
    check(op::MKDIR, &mkdir, 8, Operation::Mkdir { name: b"d", mode: 0o755, umask: 0o22 });
    let rename2 = bytes(&[&[9, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0], b"x\0yy\0"]);
    let expected = Operation::Rename { name: b"x", new_parent: 9, new_name: b"yy", flags: 2 };
    check(op::RENAME2, &rename2, 16, expected.clone());
    let rename = bytes(&[&[9, 0, 0, 0, 0, 0, 0, 0], b"x\0yy\0"]);
    let plain = Operation::Rename { name: b"x", new_parent: 9, new_name: b"yy", flags: 0 };
    check(op::RENAME, &rename, 8, plain);
}

#[test]
fn golden_write_and_read() {
    let fixed = [
        7, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 6, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 2,
        0x80, 0, 0, 0, 0, 0, 0,
    ];
    let write = bytes(&[&fixed, b"abc"]);
    let expected = WriteArgs {
        fh: 7,
        offset: 4096,
        data: b"abc",
        cache: false,
        kill_suidgid: true,
        flags: 0x8002,
        lock_owner: Some(5),
    };
    check(op::WRITE, &write, 40, Operation::Write(expected));
    let read = ReadArgs { fh: 7, offset: 4096, size: 3, flags: 0x8002, lock_owner: Some(5) };
    check(op::READ, &fixed, 40, Operation::Read(read));
    // Less data than promised.
    let mut ring = [0; 128];
    assert_eq!(both(op::WRITE, &write[..42], 40, &mut ring, Dialect::default()), Err(Errno::EINVAL));
}

#[test]
fn golden_setattr() {
    let a = abi::SetattrIn {
        valid: fattr::SIZE | fattr::ATIME | fattr::ATIME_NOW | fattr::MTIME | fattr::FH | fattr::KILL_SUIDGID,
        fh: 3,
        size: 1 << 40,
        mtime: (-5_i64).cast_unsigned(),
        mtimensec: 999,
        ..abi::SetattrIn::default()
    };
    let expected = SetattrArgs {
        size: Some(1 << 40),
        atime: Some(TimeOrNow::Now),
        mtime: Some(TimeOrNow::At(Timestamp { sec: -5, nsec: 999 })),
        fh: Some(3),
        kill_suidgid: true,
        ..SetattrArgs::default()
    };
    check(op::SETATTR, abi::bytes_of(&a), 88, Operation::Setattr(expected));
}

#[test]
fn golden_setxattr_in_both_dialects() {
    let old = bytes(&[&[2, 0, 0, 0, 1, 0, 0, 0], b"user.a\0vv"]);
    let mut expected = SetxattrArgs { name: b"user.a", value: b"vv", flags: 1, acl_kill_sgid: false };
    check(op::SETXATTR, &old, 8, Operation::Setxattr(expected));
    let new = bytes(&[&[2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], b"user.a\0vv"]);
    expected.acl_kill_sgid = true;
    let mut ring = [0; 128];
    let dialect = Dialect { setxattr_ext: true };
    assert_eq!(both(op::SETXATTR, &new, 16, &mut ring, dialect), Ok(Operation::Setxattr(expected)));
}

#[test]
fn golden_batch_forget() {
    let list = bytes(&[
        &[2, 0, 0, 0, 0, 0, 0, 0],
        &[5; 8],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[6; 8],
        &[2, 0, 0, 0, 0, 0, 0, 0],
    ]);
    let Ok(Operation::BatchForget(nodes)) =
        operation(op::BATCH_FORGET, Body::Joined(&list), Dialect::default())
    else {
        panic!("not a BATCH_FORGET");
    };
    let (five, six) = (u64::from_ne_bytes([5; 8]), u64::from_ne_bytes([6; 8]));
    let expected = [Forgotten { node: five, lookups: 1 }, Forgotten { node: six, lookups: 2 }];
    assert_eq!(nodes.collect::<Vec<_>>(), expected);
    assert!(operation(op::BATCH_FORGET, Body::Joined(&list[..list.len() - 1]), Dialect::default()).is_err());
}

#[test]
fn golden_create_with_a_group() {
    let extension = [24, 0, 0, 0, 32, 0, 0, 0, 1, 0, 0, 0, 0x39, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let fixed = [0x41, 0, 0, 0, 0xa4, 0x81, 0, 0, 0x12, 0, 0, 0, 0, 0, 0, 0];
    let create = bytes(&[&fixed, b"f\0", &extension]);
    let args = CreateArgs { name: b"f", flags: 0x41, mode: 0o100_644, umask: 0o22, kill_suidgid: false };
    check(op::CREATE, &create, 16, Operation::Create(args));
    let tail = Body::Joined(&create).tail(24).unwrap();
    assert_eq!(supplementary_group(tail), Some(1337));
    assert_eq!(Body::Joined(&create).tail(1000), None);
}

#[test]
fn names_that_no_kernel_sends_are_refused() {
    for bad in [b"".as_slice(), b"\0", b"no end", b"a/b\0", b"/\0"] {
        assert_eq!(
            operation(op::LOOKUP, Body::Joined(bad), Dialect::default()),
            Err(Errno::EINVAL),
            "{bad:?}"
        );
    }
    assert_eq!(operation(op::SYMLINK, Body::Joined(b"a\0"), Dialect::default()), Err(Errno::EINVAL));
    assert_eq!(operation(4000, Body::Joined(&[]), Dialect::default()), Ok(Operation::Unknown(4000)));
}

/// Looks at everything that a decoded request borrows.
fn touch(operation: &Operation<'_>) -> usize {
    let forgotten = if let Operation::BatchForget(list) = operation { list.clone().count() } else { 0 };
    format!("{operation:?}").len() + forgotten
}

/// Good requests, each behind its opcode: names, structures, data, lists.
fn requests() -> Vec<Vec<u8>> {
    let framed = |opcode: u32, parts: &[&[u8]]| [&opcode.to_ne_bytes()[..], &parts.concat()].concat();
    let write = abi::WriteIn { fh: 7, offset: 4096, size: 3, ..abi::WriteIn::default() };
    let setattr =
        abi::SetattrIn { valid: u32::MAX, size: 1 << 40, mtimensec: u32::MAX, ..abi::SetattrIn::default() };
    let group = [24, 0, 0, 0, 32, 0, 0, 0, 1, 0, 0, 0, 0x39, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    vec![
        framed(op::LOOKUP, &[b"hello\0"]),
        framed(op::SYMLINK, &[b"a\0/b/c\0"]),
        framed(op::RENAME2, &[&[9, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0], b"x\0yy\0"]),
        framed(op::CREATE, &[&[0x41, 0, 0, 0, 0xa4, 0x81, 0, 0, 0x12, 0, 0, 0, 0, 0, 0, 0], b"f\0", &group]),
        framed(op::WRITE, &[abi::bytes_of(&write), b"abc"]),
        framed(op::SETATTR, &[abi::bytes_of(&setattr)]),
        framed(op::SETXATTR, &[&[2, 0, 0, 0, 1, 0, 0, 0], b"user.a\0vv"]),
        framed(op::BATCH_FORGET, &[&[2, 0, 0, 0, 0, 0, 0, 0], &[5; 32]]),
        framed(op::IOCTL, &[&[0; 24], &[3, 0, 0, 0, 9, 0, 0, 0], b"abc"]),
        framed(op::COPY_FILE_RANGE, &[&[1; 56]]),
        framed(op::INIT, &[&[7, 0, 0, 0, 45, 0, 0, 0, 0, 0, 2, 0, 0xff, 0xff, 0xff, 0xff], &[0; 48]]),
        framed(op::GETXATTR, &[&[0; 8], b"user.a\0"]),
    ]
}

#[test]
fn fuzz_request() {
    fuzz("fuse-request", &requests(), as_it_is, |bytes| {
        let Some((opcode, body)) = bytes.split_first_chunk() else { return };
        let opcode = u32::from_ne_bytes(*opcode);
        let mut fixed = [0; 128];
        let fixed_len = body.len().min(128);
        fixed[..fixed_len].copy_from_slice(&body[..fixed_len]);
        // In a ring entry the kernel says where the structure ends; here any place will do.
        let rest = &body[body.len().min(usize::from(opcode as u8))..];
        // The opcodes that there are, whatever the first bytes became.
        for opcode in [opcode, opcode % 64] {
            for setxattr_ext in [false, true] {
                for body in [Body::Joined(body), Body::Split { fixed: &fixed, rest }] {
                    if let Ok(operation) = operation(opcode, body, Dialect { setxattr_ext }) {
                        touch(&operation);
                    }
                    supplementary_group(body.tail(24).unwrap_or_default());
                }
            }
        }
        supplementary_group(body);
        if let Ok(init) = crate::init::parse(body) {
            crate::init::offered(&init);
        }
    });
}
