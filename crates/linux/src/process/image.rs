//! What a process runs, and where the parts of that are in its memory.

use alloc::sync::Arc;
use core::ops::Range;

use abi::errno::Errno;
use fs::DenyWriteAccess;
use uapi::prctl_mm_map::{NO_FILE, PrctlMmMap};

use crate::process::Process;

/// The program of a process, and where its parts are in memory.
#[derive(Clone, Default)]
pub(crate) struct ProcessImage {
    /// The file of the program, which nobody can change while somebody runs it.
    pub(crate) executable: Option<Arc<DenyWriteAccess>>,
    /// Addresses of the arguments.
    pub(crate) args: Range<usize>,
    /// Addresses of the environment strings.
    pub(crate) env: Range<usize>,
    /// The auxiliary vector (`/proc/<pid>/auxv`).
    pub(crate) aux: Arc<[u8]>,
    /// Addresses of code and data, from the first byte to the one behind the last, and the address
    /// where the stack began: for who asks only.
    pub(crate) code: Range<usize>,
    pub(crate) data: Range<usize>,
    pub(crate) stack: usize,
}

/// The layout of a process's memory, as `PR_SET_MM_MAP` and `/proc/<pid>/stat` have it.
///
/// # Errors
/// `ESRCH`: it has ended.
pub(crate) fn mm_map_of(process: &Process) -> Result<PrctlMmMap, Errno> {
    let heap = process.require_space()?.heap();
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
    Ok(PrctlMmMap {
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
