//! Who a thread is.

use alloc::sync::Arc;

use fs::Cred;

use crate::state::credentials::Credentials;

/// A thread's credentials, and what files need of them, worked out once.
#[derive(Clone)]
pub(crate) struct TaskCred {
    pub(crate) all: Arc<Credentials>,
    pub(crate) files: Arc<Cred>,
}

impl From<Arc<Credentials>> for TaskCred {
    fn from(all: Arc<Credentials>) -> Self {
        Self {
            files: Arc::new(all.fs_cred()),
            all,
        }
    }
}
