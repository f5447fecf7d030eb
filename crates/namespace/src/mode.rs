//! The words of modes: where the data of a directory or of a file go, and what closing a file waits for.

/// Where what is made in a directory goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Through to near-line.
    Global,
    /// Absorbed here, drained later.
    Local,
    /// Local, but for files that say otherwise.
    Hybrid,
    /// Never drained: its data need not outlive the memory.
    Transient,
}

impl Mode {
    pub const ALL: [Mode; 4] = [Mode::Global, Mode::Local, Mode::Hybrid, Mode::Transient];

    pub const fn name(self) -> &'static str {
        match self {
            Mode::Global => "global",
            Mode::Local => "local",
            Mode::Hybrid => "hybrid",
            Mode::Transient => "transient",
        }
    }

    pub fn from_name(name: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// What a file of a hybrid directory says itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileMode {
    Global,
    Local,
    Transient,
}

impl From<FileMode> for Mode {
    fn from(mode: FileMode) -> Mode {
        match mode {
            FileMode::Global => Mode::Global,
            FileMode::Local => Mode::Local,
            FileMode::Transient => Mode::Transient,
        }
    }
}

impl FileMode {
    pub fn from_name(name: &str) -> Option<FileMode> {
        match Mode::from_name(name)? {
            Mode::Global => Some(FileMode::Global),
            Mode::Local => Some(FileMode::Local),
            Mode::Transient => Some(FileMode::Transient),
            Mode::Hybrid => None,
        }
    }
}

/// Whether close(2) waits until the file is where its mode promises it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseSync {
    Forced,
    Normal,
}

impl CloseSync {
    pub const fn name(self) -> &'static str {
        match self {
            CloseSync::Forced => "forced",
            CloseSync::Normal => "normal",
        }
    }

    pub fn from_name(name: &str) -> Option<CloseSync> {
        [CloseSync::Forced, CloseSync::Normal].into_iter().find(|sync| sync.name() == name)
    }
}
