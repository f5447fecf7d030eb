//! What names a file system and a life of its memory tier: 128 random bits each, shown as hexadecimal digits.

use serde::{Deserialize, Serialize};
use std::{fmt, io::Read, str::FromStr};

macro_rules! id128 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub [u8; 16]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", u128::from_be_bytes(self.0))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
        impl FromStr for $name {
            type Err = &'static str;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let hex = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
                let n = if hex { u128::from_str_radix(text, 16).ok() } else { None };
                n.map(|n| $name(n.to_be_bytes())).ok_or("not 32 hexadecimal digits")
            }
        }
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
            }
        }
        impl $name {
            /// From the kernel's random numbers.
            pub fn random() -> std::io::Result<Self> {
                let mut bytes = [0; 16];
                std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
                Ok($name(bytes))
            }
        }
    };
}

id128!(
    /// The identity of a file system, given when it was made.
    FsUuid
);
id128!(
    /// The identity of one life of a memory tier's content: a new one after each loss of it.
    InstanceId
);
