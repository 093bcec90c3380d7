//! Programs of filters as a caller passes them: `struct sock_fprog`.

use abi::errno::Errno;
use bpf::{Instruction, Program, Purpose};
use uapi::user_addr::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::uaccess::UserPtr;

/// Length and address of a filter program: `struct sock_fprog`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ProgramPtr {
    length: u16,
    pad: [u16; 3],
    code: u64,
}

/// The program that a caller passed as a `struct sock_fprog`, checked. Whether it is `allowed` is
/// asked before its instructions are read.
///
/// # Errors
/// `EFAULT`, `EINVAL`, that of `allowed`.
pub(crate) fn read_program(
    addr: UserAddr,
    purpose: Purpose,
    allowed: impl FnOnce() -> Result<(), Errno>,
) -> Result<Program, Errno> {
    let header = UserPtr::<ProgramPtr>::new(addr).read()?;
    if !(1..=bpf::MAX_LENGTH).contains(&header.length.into()) {
        return Err(Errno::EINVAL);
    }
    allowed()?;
    if header.code == 0 {
        return Err(Errno::EINVAL);
    }
    let from = UserPtr::<Instruction>::new(header.code.into());
    fs::charge::check_memory()?;
    let mut code = fallible::with_capacity(header.length.into())?;
    for i in 0..header.length.into() {
        code.push(from.add(i).read()?);
    }
    Program::new(code, purpose)
}
