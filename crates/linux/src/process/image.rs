//! What a process runs, and where the parts of that are in its memory.

use alloc::sync::Arc;
use core::ops::Range;

use abi::errno::Errno;
use fs::DenyWriteAccess;

use crate::process::Process;
use crate::uapi::prctl_mm_map::{Layout, NO_FILE};

/// What a process runs.
#[derive(Clone, Default)]
pub(crate) struct Image {
    /// Its program, which cannot be changed until all who run it are done with it.
    pub(crate) executable: Option<Arc<DenyWriteAccess>>,
    /// Where its arguments are in its memory.
    pub(crate) args: Range<usize>,
    /// Where its environment is.
    pub(crate) env: Range<usize>,
    /// Its auxiliary vector.
    pub(crate) aux: Arc<[u8]>,
    /// Where its code and its data are, the first byte and the one behind the last, and where its
    /// stack began: for who asks only.
    pub(crate) code: Range<usize>,
    pub(crate) data: Range<usize>,
    pub(crate) stack: usize,
}

/// What a process has.
///
/// # Errors
/// `ESRCH`: it has ended.
pub(crate) fn layout_of(process: &Process) -> Result<Layout, Errno> {
    let heap = process.memory()?.heap();
    let image = process.image.lock();
    let [
        start_code,
        end_code,
        start_data,
        end_data,
        start_brk,
        brk,
        start_stack,
    ] = [
        image.code.start,
        image.code.end,
        image.data.start,
        image.data.end,
        heap.start,
        heap.end,
        image.stack,
    ]
    .map(|at| at as u64);
    let [arg_start, arg_end, env_start, env_end] = [
        image.args.start,
        image.args.end,
        image.env.start,
        image.env.end,
    ]
    .map(|at| at as u64);
    Ok(Layout {
        start_code,
        end_code,
        start_data,
        end_data,
        start_brk,
        brk,
        start_stack,
        arg_start,
        arg_end,
        env_start,
        env_end,
        auxv: 0,
        auxv_size: 0,
        exe_fd: NO_FILE,
    })
}
