//! Goal: mappings, reads and writes of one file agree, whichever way the kernel treats it. Method: the real stack behind
//! a real mount.

#![allow(clippy::unwrap_used, reason = "tests")]

mod harness;

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use harness::{Site, map::Map};

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 7) as u8).collect()
}

fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn mapped_files_agree_with_reads_and_writes() {
    // Shared mappings of a file that is open for writing, in both directions.
    let Some(site) = Site::mounted() else { return };
    for passthrough_before in [false, true] {
        let path = site.path(&format!("f{passthrough_before}"));
        fs::write(&path, pattern(1 << 20, 9)).unwrap();
        let reader = passthrough_before.then(|| File::open(&path).unwrap());
        let file = read_write(&path);
        let map = Map::shared(&file, 1 << 20);
        assert!(map.read(0, 1 << 20) == pattern(1 << 20, 9));
        file.write_all_at(b"through the file", 5000).unwrap();
        assert_eq!(map.read(5000, 16), b"through the file");
        map.write(10_000, b"through the map");
        map.sync();
        let mut buf = [0; 15];
        file.read_exact_at(&mut buf, 10_000).unwrap();
        assert_eq!(&buf, b"through the map");
        if let Some(reader) = reader {
            reader.read_exact_at(&mut buf, 10_000).unwrap();
            assert_eq!(&buf, b"through the map");
        }
        drop(map);
        drop(file);
        assert_eq!(&fs::read(&path).unwrap()[10_000..10_015], b"through the map");
    }
}

#[test]
fn mapped_files_agree_with_direct_ones() {
    // Mappings that nobody syncs, a file opened with O_DIRECT that is mapped itself, and a second writer.
    let Some(site) = Site::mounted() else { return };
    let path = site.path("f");
    fs::write(&path, pattern(1 << 20, 3)).unwrap();
    let direct = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let plain = read_write(&path);
    let maps = [Map::shared(&direct, 1 << 20), Map::shared(&plain, 1 << 20)];
    let mut buf = vec![0; 8192];
    for n in 0..20_u8 {
        let at = usize::from(n) * 4096;
        maps[usize::from(n % 2)].write(at, &[n; 4096]);
        assert_eq!(maps[usize::from(1 - n % 2)].read(at, 4096), [n; 4096]);
        for file in [&direct, &plain] {
            let start = buf.as_ptr().align_offset(4096);
            file.read_exact_at(&mut buf[start..start + 4096], at as u64).unwrap();
            assert_eq!(buf[start..start + 4096], [n; 4096]);
            buf[start..start + 4096].fill(n + 100);
            file.write_all_at(&buf[start..start + 4096], at as u64).unwrap();
            assert_eq!(maps[0].read(at, 4096), [n + 100; 4096]);
            maps[1].write(at, &[n; 4096]);
        }
    }
    drop((maps, direct, plain));
    assert_eq!(fs::read(&path).unwrap()[19 * 4096 - 1..19 * 4096 + 1], [18, 19]);
}

/// Linux before 6.6 answers ENODEV to a shared mapping of a file that is opened for direct I/O. Method: a kernel that
/// is said not to offer it; readers before and after the writer, whose first pages must not outlive its writes.
#[test]
fn regression_a_writer_maps_its_file_where_direct_ones_cannot_be() {
    let Some(mut site) = Site::new() else { return };
    site.older_kernel = true;
    site.mount();
    let path = site.path("f");
    fs::write(&path, pattern(1 << 20, 5)).unwrap();
    let before = File::open(&path).unwrap();
    let mut buf = [0; 4];
    before.read_exact_at(&mut buf, 4094).unwrap();
    let writer = read_write(&path);
    let map = Map::shared(&writer, 1 << 20);
    map.write(4096, b"mapped");
    before.read_exact_at(&mut buf, 4096).unwrap();
    assert_eq!(&buf, b"mapp");
    writer.write_all_at(b"written", 4094).unwrap();
    let after = File::open(&path).unwrap();
    for file in [&before, &writer, &after] {
        file.read_exact_at(&mut buf, 4094).unwrap();
        assert_eq!(&buf, b"writ");
    }
    assert_eq!(map.read(4096, 6), b"ittend");
    drop((before, after, map, writer));
    assert_eq!(&fs::read(&path).unwrap()[4094..4102], b"writtend");
}
