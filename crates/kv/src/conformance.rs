//! What every engine must do, for the tests of each of them. Panics when one does not.

use std::{collections::BTreeMap, ops::ControlFlow, path::Path};

use bytes::Bytes;
use namespace::txn::KvError;

use crate::{ApplyError, Engine, Lsn};

/// Every row opens its engine in a directory of its own below `dir`; `make` creates or reopens one there.
pub fn run(dir: &Path, make: impl Fn(&Path) -> Box<dyn Engine>) -> Result<(), KvError> {
    type Row = fn(&Path, &dyn Fn(&Path) -> Box<dyn Engine>) -> Result<(), KvError>;
    let rows: [(&str, Row); 7] = [
        ("new", a_new_engine_is_empty),
        ("points", points_and_deletions),
        ("edges", range_edges),
        ("sizes", sizes_of_keys_and_values),
        ("reopen", what_was_applied_is_there_after_reopening),
        ("reentrant", a_visitor_may_read),
        ("model", random_batches_agree_with_a_map),
    ];
    for (name, row) in rows {
        let own = dir.join(name);
        std::fs::create_dir_all(&own).map_err(|e| KvError::Io(e.to_string()))?;
        row(&own, &make)?;
    }
    Ok(())
}

type Make<'a> = &'a dyn Fn(&Path) -> Box<dyn Engine>;
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn a_new_engine_is_empty(dir: &Path, make: Make<'_>) -> Result<(), KvError> {
    let engine = make(dir);
    assert_eq!(engine.applied_lsn()?, Lsn(0));
    assert_eq!(engine.get(b"key")?, None);
    assert_eq!(range(&*engine, b"", &[0xff; 40])?, []);
    // An empty batch still stores its number.
    engine.apply(&[], Lsn(9)).map_err(refused)?;
    assert_eq!(engine.applied_lsn()?, Lsn(9));
    assert_eq!(range(&*engine, b"", &[0xff; 40])?, [], "the engine's own records are not shown");
    engine.close()
}

fn points_and_deletions(dir: &Path, make: Make<'_>) -> Result<(), KvError> {
    let engine = make(dir);
    engine.apply(&[(b"a", Some(b"1")), (b"b", Some(b"")), (b"c", Some(b"3"))], Lsn(1)).map_err(refused)?;
    assert_eq!(engine.get(b"a")?.as_deref(), Some(&b"1"[..]));
    assert_eq!(engine.get(b"b")?.as_deref(), Some(&b""[..]), "an empty value is a value");
    engine.apply(&[(b"a", Some(b"one")), (b"b", None), (b"z", None)], Lsn(2)).map_err(refused)?;
    assert_eq!(engine.get(b"a")?.as_deref(), Some(&b"one"[..]));
    assert_eq!(engine.get(b"b")?, None);
    assert_eq!(engine.get(b"z")?, None, "deleting what is not there is fine");
    assert_eq!(range(&*engine, b"a", b"z")?, pairs(&[(b"a", b"one"), (b"c", b"3")]));
    engine.apply(&[(b"b", Some(b"back"))], Lsn(3)).map_err(refused)?;
    assert_eq!(engine.get(b"b")?.as_deref(), Some(&b"back"[..]));
    assert_eq!(engine.applied_lsn()?, Lsn(3));
    engine.close()
}

fn range_edges(dir: &Path, make: Make<'_>) -> Result<(), KvError> {
    let engine = make(dir);
    let keys: [&[u8]; 7] = [&[0], &[0, 0], &[1], &[1, 0xff], &[1, 0xff, 0], &[0xff], &[0xff; 9]];
    let batch: Vec<(&[u8], Option<&[u8]>)> = keys.iter().map(|k| (*k, Some(*k))).collect();
    engine.apply(&batch, Lsn(1)).map_err(refused)?;
    let ends: Vec<&[u8]> = [&[][..], &[0xff; 20], &[1, 1]].into_iter().chain(keys).collect();
    for from in &ends {
        for to in &ends {
            let expected: Pairs =
                keys.iter().filter(|k| from <= *k && *k < to).map(|k| (k.to_vec(), k.to_vec())).collect();
            assert_eq!(range(&*engine, from, to)?, expected, "{from:?}..{to:?}");
        }
    }
    let mut visited = 0;
    engine.scan(b"", &[0xff; 20], &mut |_, _| {
        visited += 1;
        if visited == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    assert_eq!(visited, 3, "a break ends the scan");
    engine.close()
}

fn sizes_of_keys_and_values(dir: &Path, make: Make<'_>) -> Result<(), KvError> {
    let sizes = [0, 1, 255, 4095, 4096, 65_536, 1 << 20];
    let value = |size: usize| (0..size).map(|i| (i * 31 % 251) as u8).collect::<Vec<u8>>();
    let key = |size: usize| vec![7u8; (size % 4096).max(1)];
    let engine = make(dir);
    for size in sizes {
        engine.apply(&[(&key(size), Some(&value(size)))], Lsn(size as u64 + 1)).map_err(refused)?;
        assert_eq!(engine.get(&key(size))?.as_deref(), Some(value(size).as_slice()), "{size}");
    }
    engine.close()?;
    drop(engine);
    let engine = make(dir);
    let big = 1 << 20;
    assert_eq!(engine.get(&key(big))?.as_deref(), Some(value(big).as_slice()));
    assert_eq!(engine.get(&key(4095))?.as_deref(), Some(value(4095).as_slice()));
    engine.close()
}

fn what_was_applied_is_there_after_reopening(dir: &Path, make: Make<'_>) -> Result<(), KvError> {
    for round in 0..4u64 {
        let engine = make(dir);
        assert_eq!(engine.applied_lsn()?, Lsn(round * 10));
        for earlier in 0..round {
            let expected = (earlier + 1 == round).then(|| Bytes::copy_from_slice(&earlier.to_be_bytes()));
            assert_eq!(engine.get(&earlier.to_be_bytes())?, expected, "round {round}, key {earlier}");
        }
        let (new, old) = (round.to_be_bytes(), round.wrapping_sub(1).to_be_bytes());
        let mut batch: Vec<(&[u8], Option<&[u8]>)> = vec![(&new, Some(&new)), (&old, None)];
        batch.sort();
        engine.apply(&batch, Lsn((round + 1) * 10)).map_err(refused)?;
        // Once closed and once not: `apply` alone is durable.
        if round % 2 == 0 {
            engine.close()?;
        }
    }
    Ok(())
}

fn a_visitor_may_read(dir: &Path, make: Make<'_>) -> Result<(), KvError> {
    let engine = make(dir);
    engine.apply(&[(b"a", Some(b"1")), (b"b", Some(b"2"))], Lsn(1)).map_err(refused)?;
    let mut seen = Vec::new();
    engine.scan(b"a", b"c", &mut |key, value| {
        assert_eq!(engine.get(key).ok().flatten().as_deref(), Some(value));
        seen.push(key.to_vec());
        ControlFlow::Continue(())
    })?;
    assert_eq!(seen, [b"a", b"b"]);
    engine.close()
}

fn random_batches_agree_with_a_map(dir: &Path, make: Make<'_>) -> Result<(), KvError> {
    let mut random = Random(0x5eed);
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut engine = make(dir);
    for lsn in 1..=120u64 {
        let mut batch: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
        for _ in 0..random.below(40) {
            let value = vec![random.below(256) as u8; random.below(300) as usize];
            batch.insert(random.key(), (random.below(3) > 0).then_some(value));
        }
        let entries: Vec<_> = batch.iter().map(|(k, v)| (k.as_slice(), v.as_deref())).collect();
        engine.apply(&entries, Lsn(lsn)).map_err(refused)?;
        for (key, value) in batch {
            match value {
                Some(value) => drop(model.insert(key, value)),
                None => drop(model.remove(&key)),
            }
        }
        if random.below(25) == 0 {
            drop(engine);
            engine = make(dir);
        }
        assert_eq!(engine.applied_lsn()?, Lsn(lsn));
        let (a, b, point) = (random.key(), random.key(), random.key());
        let expected: Pairs =
            model.iter().filter(|(k, _)| a <= **k && **k < b).map(|(k, v)| (k.clone(), v.clone())).collect();
        assert_eq!(range(&*engine, &a, &b)?, expected);
        assert_eq!(engine.get(&point)?.as_deref(), model.get(&point).map(Vec::as_slice));
    }
    let all: Pairs = model.into_iter().collect();
    assert_eq!(range(&*engine, b"", &[0xff; 40])?, all);
    engine.close()
}

fn refused(error: ApplyError) -> KvError {
    match error {
        ApplyError::Nothing(error)
        | ApplyError::Unknown(error)
        | ApplyError::Again(error)
        | ApplyError::Fenced(error) => error,
    }
}

fn range(engine: &dyn Engine, from: &[u8], to: &[u8]) -> Result<Pairs, KvError> {
    let mut found = Vec::new();
    engine.scan(from, to, &mut |key, value| {
        found.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

fn pairs(entries: &[(&[u8], &[u8])]) -> Pairs {
    entries.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
}

/// A small generator (splitmix64): the same batches on every engine.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn key(&mut self) -> Vec<u8> {
        let len = 1 + self.below(6) as usize;
        (0..len).map(|_| [0, 1, 0x7f, 0xff][self.below(4) as usize]).collect()
    }
}
