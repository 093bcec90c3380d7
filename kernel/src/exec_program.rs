//! Programs that the supervisor asks for beside an instance's first one (`skerry exec`): what they
//! have of the first one, between `link` and `linux`.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::boot::Boot;
use abi::errno::Errno;
use fs::File;
use link::{ExecProgram, ExecRequest, ExecStdio};
use linux::InitProgram;
use linux::exec_program::{self, RunningProgram};

use crate::start::{open_file, search_path};

/// A program that runs beside the first one.
struct Running(RunningProgram);

impl ExecProgram for Running {
    fn signal(&self, signal: u32) {
        self.0.signal(signal as i32);
    }

    fn hang_up(&self) {
        self.0.hang_up();
    }

    fn wait(&self) -> u8 {
        self.0.wait()
    }
}

/// Runs a program that the supervisor asks for, with the environment and the working directory of
/// the first program, but for what is asked for.
pub(crate) fn run(request: &ExecRequest<'_>) -> Result<Arc<dyn ExecProgram>, Errno> {
    let first = Boot::parse(guard::instance::boot_blob()).map_err(|_| Errno::EINVAL)?;
    let env = environment(&first, &request.boot)?;
    let mut args = Vec::new();
    for argument in request.boot.arguments() {
        fallible::push(&mut args, fallible::copy_of(argument)?)?;
    }
    let context = exec_program::context()?;
    let path = search_path(&context, args.first().ok_or(Errno::EINVAL)?, &env);
    let device = |path: &[u8]| -> Result<[Arc<File>; 3], Errno> {
        let file = open_file(&context, path).ok_or(Errno::ENXIO)?;
        Ok([file.clone(), file.clone(), file])
    };
    let stdio = match &request.stdio {
        ExecStdio::Streams(files) => files.clone(),
        ExecStdio::Terminal(tty) => device(&[&b"/dev/"[..], tty.name().as_bytes()].concat())?,
        ExecStdio::Nowhere => device(b"/dev/null")?,
    };
    let terminal = match &request.stdio {
        ExecStdio::Terminal(tty) => Some(tty.clone()),
        _ => None,
    };
    let cwd = match request.boot.cwd {
        "" => first.cwd,
        cwd => cwd,
    };
    let program = InitProgram {
        path,
        args,
        env,
        cwd: fallible::copy_of(cwd.as_bytes())?,
        terminal,
    };
    let user = (request.user, request.group);
    let running = exec_program::spawn(program, context, stdio, user)?;
    Ok(Arc::new(Running(running)))
}

/// The first program's variables, but for those that are asked for; of several of a name the last
/// one counts.
fn environment(first: &Boot<'_>, asked: &Boot<'_>) -> Result<Vec<Vec<u8>>, Errno> {
    fn name(variable: &[u8]) -> &[u8] {
        variable.split(|byte| *byte == b'=').next().unwrap_or(&[])
    }
    let mut names = Vec::new();
    for variable in asked.variables() {
        fallible::push(&mut names, name(variable))?;
    }
    names.sort_unstable();
    let mut env = Vec::new();
    let inherited = first
        .variables()
        .filter(|variable| names.binary_search(&name(variable)).is_err());
    for variable in inherited {
        fallible::push(&mut env, fallible::copy_of(variable)?)?;
    }
    let own = env.len();
    for variable in asked.variables() {
        let copy = fallible::copy_of(variable)?;
        match env[own..]
            .iter_mut()
            .find(|other| name(other) == name(variable))
        {
            Some(other) => *other = copy,
            None => fallible::push(&mut env, copy)?,
        }
    }
    Ok(env)
}
