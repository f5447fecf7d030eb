//! How many values a JSON text has, found without keeping any of them.
//!
//! Two bytes of JSON can become dozens in memory (`[0,0,0,...]`); a text with few values cannot.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Fails when the text has more than `most` values, or is no JSON.
pub fn at_most(most: usize, text: &[u8]) -> Result<(), serde_json::Error> {
    let mut left = most;
    Weigher { left: &mut left, most }.deserialize(&mut serde_json::Deserializer::from_slice(text))
}

struct Weigher<'a> {
    left: &'a mut usize,
    most: usize,
}

impl Weigher<'_> {
    fn count<E: Error>(&mut self) -> Result<(), E> {
        *self.left =
            self.left.checked_sub(1).ok_or_else(|| E::custom(format!("more than {} values", self.most)))?;
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Weigher<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, text: D) -> Result<(), D::Error> {
        text.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Weigher<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E: Error>(mut self) -> Result<(), E> {
        self.count()
    }
    fn visit_bool<E: Error>(mut self, _: bool) -> Result<(), E> {
        self.count()
    }
    fn visit_i64<E: Error>(mut self, _: i64) -> Result<(), E> {
        self.count()
    }
    fn visit_u64<E: Error>(mut self, _: u64) -> Result<(), E> {
        self.count()
    }
    fn visit_f64<E: Error>(mut self, _: f64) -> Result<(), E> {
        self.count()
    }
    fn visit_str<E: Error>(mut self, _: &str) -> Result<(), E> {
        self.count()
    }
    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        self.count()?;
        while seq.next_element_seed(Weigher { left: self.left, most: self.most })?.is_some() {}
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        self.count()?;
        while map.next_key::<IgnoredAny>()?.is_some() {
            map.next_value_seed(Weigher { left: self.left, most: self.most })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    //! Goal: every value counts, of whatever kind. Method: texts with a known number.
    use super::*;

    #[test]
    fn values_are_counted() {
        let text = br#"{"a":[1,-1,1.5,"x\n",null,true],"b":{}}"#;
        assert!(at_most(9, text).is_ok());
        assert!(at_most(8, text).unwrap_err().to_string().contains("more than 8 values"));
        assert!(at_most(9, b"{").is_err());
        let deep = "[".repeat(100_000);
        assert!(at_most(usize::MAX, deep.as_bytes()).is_err());
    }
}
