//! Ways as the kernel takes them.

use link::Way;
use types::Errno;

/// The longest path that a system call takes, without the NUL at its end.
const PATH_BYTES_MAX: usize = 4095;

/// `EINVAL` for what is not a way: such a name could lead elsewhere.
pub(crate) fn check(way: &Way) -> Result<(), Errno> {
    let sound = |name: &Vec<u8>| {
        !name.is_empty() && name != b"." && name != b".." && !name.iter().any(|b| matches!(b, b'/' | 0))
    };
    if way.iter().all(sound) { Ok(()) } else { Err(Errno::EINVAL) }
}

/// The way in paths that one call takes, each from where the last one leads. The root is ".".
pub(crate) fn paths(way: &Way) -> Vec<Vec<u8>> {
    let mut paths: Vec<Vec<u8>> = Vec::with_capacity(1);
    for name in way {
        match paths.last_mut() {
            Some(path) if path.len() + 1 + name.len() <= PATH_BYTES_MAX => {
                path.push(b'/');
                path.extend_from_slice(name);
            }
            Some(_) | None => paths.push(name.clone()),
        }
    }
    if paths.is_empty() {
        paths.push(b".".to_vec());
    }
    paths
}

#[cfg(test)]
mod tests {
    //! Goal: nothing but names gets through, and long ways lose nothing. Method: examples, lengths around the limit.
    use super::*;

    #[test]
    fn what_is_no_name_is_refused() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b"] {
            assert_eq!(check(&[b"a".to_vec(), bad.to_vec()]), Err(Errno::EINVAL), "{bad:?}");
        }
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[b"...".to_vec(), b"\xff\n ".to_vec()]), Ok(()));
    }

    #[test]
    fn long_ways_are_cut_between_names() {
        assert_eq!(paths(&[]), [b".".to_vec()]);
        assert_eq!(paths(&[b"a".to_vec(), b"b".to_vec()]), [b"a/b".to_vec()]);
        for names in 1..60 {
            let way: Vec<Vec<u8>> = (0..names).map(|n| vec![b'a' + (n % 26) as u8; 255]).collect();
            let paths = paths(&way);
            assert!(paths.iter().all(|p| p.len() <= PATH_BYTES_MAX));
            assert_eq!(paths.join(&b'/'), way.join(&b'/'));
            assert_eq!(paths.len(), way.len().div_ceil(16));
        }
    }
}
