//! Whether its reports are taken.

use super::DataService;

impl DataService {
    /// There will be reports: what is not here is not said to be empty before one was taken.
    pub fn waits_for_reports(&self) {
        self.vouched.wait();
    }

    /// Has a metadata server taken a report since [`DataService::waits_for_reports`]?
    pub fn was_taken(&self) -> bool {
        self.vouched.may_say_nothing().is_ok()
    }

    /// Whether a metadata server says that this is not who its number stands for, and whether it did before.
    pub(crate) fn vouched(&self, refused: bool, before: bool) {
        self.vouched.said(refused, before);
    }
}
