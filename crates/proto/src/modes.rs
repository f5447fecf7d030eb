//! How a name is replaced and an extended attribute set, and their values in the namespace.

use prost::Enumeration;

/// See [`namespace::RenameMode`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum RenameMode {
    Replace = 0,
    NoReplace = 1,
    Exchange = 2,
}

/// See [`namespace::XattrMode`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum XattrMode {
    Set = 0,
    Create = 1,
    Replace = 2,
}

impl From<namespace::RenameMode> for RenameMode {
    fn from(mode: namespace::RenameMode) -> RenameMode {
        match mode {
            namespace::RenameMode::Replace => RenameMode::Replace,
            namespace::RenameMode::NoReplace => RenameMode::NoReplace,
            namespace::RenameMode::Exchange => RenameMode::Exchange,
        }
    }
}

impl From<RenameMode> for namespace::RenameMode {
    fn from(mode: RenameMode) -> namespace::RenameMode {
        match mode {
            RenameMode::Replace => namespace::RenameMode::Replace,
            RenameMode::NoReplace => namespace::RenameMode::NoReplace,
            RenameMode::Exchange => namespace::RenameMode::Exchange,
        }
    }
}

impl From<namespace::XattrMode> for XattrMode {
    fn from(mode: namespace::XattrMode) -> XattrMode {
        match mode {
            namespace::XattrMode::Set => XattrMode::Set,
            namespace::XattrMode::Create => XattrMode::Create,
            namespace::XattrMode::Replace => XattrMode::Replace,
        }
    }
}

impl From<XattrMode> for namespace::XattrMode {
    fn from(mode: XattrMode) -> namespace::XattrMode {
        match mode {
            XattrMode::Set => namespace::XattrMode::Set,
            XattrMode::Create => namespace::XattrMode::Create,
            XattrMode::Replace => namespace::XattrMode::Replace,
        }
    }
}
