//! Maps and differences into bytes and back: the records in their envelopes.
//!
//! A map that was decoded keeps the rules of maps. A difference is held against them when it is applied.

use crate::{
    difference::Difference,
    envelope::{DecodeError, Form, open, seal},
    map::ClusterMap,
    schema::{DifferenceRecord, MapRecord},
};

impl ClusterMap {
    pub fn encode(&self) -> Vec<u8> {
        seal(Form::Map, &MapRecord::of(self))
    }

    pub fn decode(bytes: &[u8]) -> Result<ClusterMap, DecodeError> {
        Ok(open::<MapRecord>(Form::Map, bytes)?.into_map()?)
    }
}

impl Difference {
    pub fn encode(&self) -> Vec<u8> {
        seal(Form::Difference, &DifferenceRecord::of(self))
    }

    pub fn decode(bytes: &[u8]) -> Result<Difference, DecodeError> {
        Ok(open::<DifferenceRecord>(Form::Difference, bytes)?.into_difference()?)
    }
}
