//! Mounting by descriptors: `fsopen(2)`, `fsconfig(2)`, `fsmount(2)`, `fspick(2)`, `open_tree(2)`,
//! `move_mount(2)`, `mount_setattr(2)`.

use alloc::string::String;
use alloc::sync::Arc;

use ::task::Mutex;
use abi::errno::Errno;
use fs::mount::{
    self, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_NOSYMFOLLOW, MS_RDONLY, Mount, Namespace, SuperBlock,
};
use fs::{File, FileOps, OpenFlags, Path, ops};
use linux_raw_sys::general as sys;
use uapi::fd::Fd;
use uapi::user_addr::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::files::filesystems::find_type;
use crate::files::namei::lookup_at;
use crate::mount::{
    check_options, common_options, create_file_system, propagation_type, read_text,
};
use crate::process_control::namespaces::may_mount;
use crate::state::fdtable::CloseOnExec;
use crate::{SysResult, Task, uaccess};

/// Phase of a context's life.
#[derive(Clone)]
enum Phase {
    /// Takes the options of a new file system of this type.
    CreateParams(&'static str),
    /// Holds a new file system, which is mounted nowhere.
    AwaitingMount(Arc<SuperBlock>),
    /// Takes options for a file system that exists.
    ReconfigureParams(Arc<SuperBlock>),
    /// Does nothing more: something failed, or all is done.
    Failed,
}

struct State {
    phase: Phase,
    source: String,
    /// Options so far, with commas between them.
    options: String,
    /// Reason of the last failure, for who reads the descriptor.
    error_log: Option<String>,
}

/// A descriptor of `fsopen(2)` or `fspick(2)`.
struct MountContext(Mutex<State>);

impl FileOps for MountContext {
    fn read(&self, _: &File, buf: &mut [u8]) -> Result<usize, Errno> {
        let mut state = self.0.lock();
        let complaint = state.error_log.as_deref().ok_or(Errno::ENODATA)?;
        let len = complaint.len();
        buf.get_mut(..len)
            .ok_or(Errno::EMSGSIZE)?
            .copy_from_slice(complaint.as_bytes());
        state.error_log = None;
        Ok(len)
    }

    fn read_nothing(&self, file: &File) -> Result<usize, Errno> {
        self.read(file, &mut [])
    }

    fn is_pollable(&self) -> bool {
        false
    }
}

fn install_context(task: &Task, phase: Phase, cloexec: CloseOnExec) -> SysResult {
    let state = State {
        phase,
        source: String::new(),
        options: String::new(),
        error_log: None,
    };
    let file = File::anonymous(
        "anon_inode:[fscontext]",
        Arc::new(MountContext(Mutex::new(state))),
        OpenFlags::RDWR,
    );
    task.files().install(file, cloexec)
}

/// `fsopen(2)`: makes a context for a new file system of a type.
pub fn sys_fsopen(task: &Task, kind: UserAddr, flags: u32) -> SysResult {
    may_mount(task)?;
    if flags & !sys::FSOPEN_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    let kind = find_type(&read_text(kind)?).ok_or(Errno::ENODEV)?;
    install_context(
        task,
        Phase::CreateParams(kind),
        CloseOnExec::when(flags != 0),
    )
}

/// `fspick(2)`: makes a context to reconfigure a mounted file system.
pub fn sys_fspick(task: &Task, dirfd: Fd, name: UserAddr, flags: u32) -> SysResult {
    may_mount(task)?;
    if flags
        & !(sys::FSPICK_CLOEXEC
            | sys::FSPICK_SYMLINK_NOFOLLOW
            | sys::FSPICK_NO_AUTOMOUNT
            | sys::FSPICK_EMPTY_PATH)
        != 0
    {
        return Err(Errno::EINVAL);
    }
    let bit = |ours: u32, theirs: u32| if flags & ours != 0 { theirs } else { 0 };
    let how = bit(sys::FSPICK_SYMLINK_NOFOLLOW, sys::AT_SYMLINK_NOFOLLOW)
        | bit(sys::FSPICK_EMPTY_PATH, sys::AT_EMPTY_PATH);
    let path = lookup_at(task, dirfd, name, how)?;
    require_top(&path)?;
    install_context(
        task,
        Phase::ReconfigureParams(path.mount().super_block().clone()),
        CloseOnExec::when(flags & sys::FSPICK_CLOEXEC != 0),
    )
}

fn require_top(path: &Path) -> Result<(), Errno> {
    if Arc::ptr_eq(path.dentry(), path.mount().root()) {
        Ok(())
    } else {
        Err(Errno::EINVAL)
    }
}

const SET_FLAG: u32 = 0;
const SET_STRING: u32 = 1;
const SET_BINARY: u32 = 2;
const SET_PATH: u32 = 3;
const SET_PATH_EMPTY: u32 = 4;
const SET_FD: u32 = 5;
const CREATE: u32 = 6;
const RECONFIGURE: u32 = 7;
/// The longest key and value.
const TEXT_MAX: usize = 256;
/// The most bytes of a value that is no text.
const BINARY_MAX: i32 = 1 << 20;

/// Value of an option.
enum Value {
    /// None.
    Flag,
    /// `FSCONFIG_SET_STRING`.
    Text(String),
    /// Bytes, a path or a descriptor, which no option of any type takes.
    Other,
}

/// Reads the value of an option that `command` sets.
///
/// # Errors
/// `EFAULT`, `ENOENT` for an empty path, `EBADF`, `ENAMETOOLONG`.
fn read_value(task: &Task, command: u32, value: UserAddr, aux: i32) -> Result<Value, Errno> {
    match command {
        SET_STRING => return read_key(value).map(Value::Text),
        SET_BINARY => {
            let mut bytes = fallible::zeroed(aux.cast_unsigned() as usize)?;
            uaccess::read_bytes(value, &mut bytes)?;
        }
        SET_PATH | SET_PATH_EMPTY => {
            let path = uaccess::read_cstr(value, fs::PATH_MAX)?;
            if path.is_empty() && command == SET_PATH {
                return Err(Errno::ENOENT);
            }
        }
        SET_FD => drop(task.file_io(Fd::new(aux))?),
        _ => return Ok(Value::Flag),
    }
    Ok(Value::Other)
}

/// Reads an option's name, or its value as text.
fn read_key(addr: UserAddr) -> Result<String, Errno> {
    uaccess::read_cstr(addr, TEXT_MAX).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// `fsconfig(2)`: sets an option of a context, or carries it out.
pub fn sys_fsconfig(
    task: &Task,
    fd: Fd,
    command: u32,
    key: UserAddr,
    value: UserAddr,
    aux: i32,
) -> SysResult {
    if fd.is_negative() {
        return Err(Errno::EINVAL);
    }
    let sound = match command {
        SET_FLAG => !key.is_null() && value.is_null() && aux == 0,
        SET_STRING => !key.is_null() && !value.is_null() && aux == 0,
        SET_BINARY => !key.is_null() && !value.is_null() && (1..=BINARY_MAX).contains(&aux),
        SET_PATH | SET_PATH_EMPTY => {
            !key.is_null() && !value.is_null() && (aux >= 0 || aux == sys::AT_FDCWD)
        }
        SET_FD => !key.is_null() && value.is_null() && aux >= 0,
        CREATE | RECONFIGURE => key.is_null() && value.is_null() && aux == 0,
        _ => return Err(Errno::EOPNOTSUPP),
    };
    if !sound {
        return Err(Errno::EINVAL);
    }
    let file = task.file_io(fd)?;
    let context = file.ops_as::<MountContext>().ok_or(Errno::EINVAL)?;
    if (SET_BINARY..=SET_FD).contains(&command) && context.0.lock().takes_text_only() {
        return Err(Errno::EOPNOTSUPP);
    }
    let key = if key.is_null() {
        String::new()
    } else {
        read_key(key)?
    };
    let value = read_value(task, command, value, aux)?;
    let mut state = context.0.lock();
    match command {
        CREATE => create(task, &mut state),
        RECONFIGURE => reconfigure(task, &mut state),
        _ => state.set_option(&key, value),
    }
    .map(|()| 0)
}

fn create(task: &Task, state: &mut State) -> Result<(), Errno> {
    let Phase::CreateParams(kind) = state.phase else {
        return Err(Errno::EBUSY);
    };
    may_mount(task)?;
    let options = core::mem::take(&mut state.options);
    let source = Some(state.source.as_bytes());
    let made = create_file_system(task, kind.as_bytes(), source, &options, 0);
    state.phase = made
        .as_ref()
        .map_or(Phase::Failed, |shown| Phase::AwaitingMount(shown.clone()));
    made.map(drop)
}

fn reconfigure(task: &Task, state: &mut State) -> Result<(), Errno> {
    let Phase::ReconfigureParams(shown) = state.phase.clone() else {
        return Err(Errno::EBUSY);
    };
    may_mount(task)?;
    let (options, bits) = common_options(&core::mem::take(&mut state.options), shown.flags());
    shown.reconfigure(bits, &options)
}

impl State {
    /// Whether the type has its options as one text only, as on Linux 6.1.
    fn takes_text_only(&self) -> bool {
        let kind = match &self.phase {
            Phase::CreateParams(kind) => kind,
            Phase::AwaitingMount(shown) | Phase::ReconfigureParams(shown) => shown.fs().name(),
            Phase::Failed => return false,
        };
        kind == "devpts"
    }

    /// Takes one more option, which is looked at now.
    fn set_option(&mut self, key: &str, value: Value) -> Result<(), Errno> {
        let known = match &self.phase {
            Phase::CreateParams(_) if key == "source" => {
                let Value::Text(source) = value else {
                    return Err(Errno::EINVAL);
                };
                if !self.source.is_empty() {
                    return Err(Errno::EINVAL);
                }
                self.source = source;
                return Ok(());
            }
            Phase::CreateParams(kind) => mount_options(kind),
            Phase::ReconfigureParams(shown) => mount_options(shown.fs().name()),
            _ => return Err(Errno::EBUSY),
        };
        // Of what all types know only the name counts.
        let common = !key.is_empty() && common_options(key, 0).0.is_empty();
        let option = match value {
            Value::Text(value) if !common => Some(alloc::format!("{key}={value}")),
            Value::Other if !common => None,
            _ => Some(key.into()),
        };
        let is_taken = |option: &String| !option.contains(',') && known(option).is_ok();
        let Some(option) = option.filter(is_taken) else {
            self.error_log = Some(alloc::format!("e Unknown parameter '{key}'"));
            return Err(Errno::EINVAL);
        };
        if !self.options.is_empty() {
            self.options.push(',');
        }
        self.options += &option;
        Ok(())
    }
}

/// Function that tells whether a type knows an option.
fn mount_options(kind: &str) -> impl Fn(&str) -> Result<(), Errno> + '_ {
    move |option| check_options(kind.as_bytes(), &common_options(option, 0).0)
}

/// Mount flags by their `MOUNT_ATTR_*`.
const ATTRIBUTES: [(u32, u32); 6] = [
    (sys::MOUNT_ATTR_RDONLY, MS_RDONLY),
    (sys::MOUNT_ATTR_NOSUID, MS_NOSUID),
    (sys::MOUNT_ATTR_NODEV, MS_NODEV),
    (sys::MOUNT_ATTR_NOEXEC, MS_NOEXEC),
    (sys::MOUNT_ATTR_NODIRATIME, sys::MS_NODIRATIME),
    (sys::MOUNT_ATTR_NOSYMFOLLOW, MS_NOSYMFOLLOW),
];
const ATIME: u32 = sys::MOUNT_ATTR__ATIME;

/// The bits of `mount(2)` for attributes, but those of access times.
fn bits_of(attributes: u32) -> Result<u32, Errno> {
    let known = ATTRIBUTES
        .iter()
        .fold(ATIME, |all, (attribute, _)| all | attribute);
    if attributes & !known != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(ATTRIBUTES
        .iter()
        .filter(|(attribute, _)| attributes & attribute != 0)
        .fold(0, |bits, (_, bit)| bits | bit))
}

/// Mount flags of the access times that attributes ask for.
fn times_of(attributes: u32) -> Result<u32, Errno> {
    Ok(match attributes & ATIME {
        sys::MOUNT_ATTR_RELATIME => sys::MS_RELATIME,
        sys::MOUNT_ATTR_NOATIME => sys::MS_NOATIME,
        sys::MOUNT_ATTR_STRICTATIME => 0,
        _ => return Err(Errno::EINVAL),
    })
}

/// `fsmount(2)`: makes a mount of a context's file system; returns its descriptor.
pub fn sys_fsmount(task: &Task, fd: Fd, flags: u32, attributes: u32) -> SysResult {
    may_mount(task)?;
    if flags & !sys::FSMOUNT_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    let bits = bits_of(attributes)? | times_of(attributes)?;
    let file = task.file_io(fd)?;
    let context = file.ops_as::<MountContext>().ok_or(Errno::EINVAL)?;
    let space = {
        let mut state = context.0.lock();
        let shown = match &state.phase {
            Phase::AwaitingMount(shown) => shown.clone(),
            Phase::ReconfigureParams(_) | Phase::Failed => return Err(Errno::EBUSY),
            Phase::CreateParams(_) => return Err(Errno::EINVAL),
        };
        let source = if state.source.is_empty() {
            "none"
        } else {
            &state.source
        };
        let space = Namespace::anonymous(shown.clone(), source, bits);
        state.phase = Phase::ReconfigureParams(shown);
        space
    };
    install_tree(task, space, CloseOnExec::when(flags != 0))
}

/// A descriptor of a tree that is in no namespace; when it is closed the tree goes, unless it was
/// mounted.
fn install_tree(task: &Task, space: Arc<Namespace>, cloexec: CloseOnExec) -> SysResult {
    task.files()
        .install(ops::open_o_path(space.root_path(), Some(space)), cloexec)
}

/// `open_tree(2)`: opens a mount, or a copy of it with `OPEN_TREE_CLONE`.
pub fn sys_open_tree(task: &Task, dirfd: Fd, name: UserAddr, flags: u32) -> SysResult {
    const LOOKUP: u32 = sys::AT_EMPTY_PATH | sys::AT_SYMLINK_NOFOLLOW;
    let copies = flags & sys::OPEN_TREE_CLONE != 0;
    let recursive = flags & sys::AT_RECURSIVE != 0;
    let known = LOOKUP
        | sys::AT_NO_AUTOMOUNT
        | sys::AT_RECURSIVE
        | sys::OPEN_TREE_CLONE
        | sys::OPEN_TREE_CLOEXEC;
    if flags & !known != 0 || recursive && !copies {
        return Err(Errno::EINVAL);
    }
    if copies {
        may_mount(task)?;
    }
    let path = lookup_at(task, dirfd, name, flags & LOOKUP)?;
    let cloexec = CloseOnExec::when(flags & sys::OPEN_TREE_CLOEXEC != 0);
    if copies {
        return install_tree(
            task,
            mount::copy_tree(&task.fs().namespace(), &path, recursive)?,
            cloexec,
        );
    }
    task.files().install(ops::open_o_path(path, None), cloexec)
}

/// `move_mount(2)`: moves or attaches a mount.
pub fn sys_move_mount(
    task: &Task,
    from_fd: Fd,
    from: UserAddr,
    to_fd: Fd,
    to: UserAddr,
    flags: u32,
) -> SysResult {
    may_mount(task)?;
    if flags & !sys::MOVE_MOUNT__MASK != 0 {
        return Err(Errno::EINVAL);
    }
    let lookup = |fd, name, links: u32, empty: u32| {
        let nofollow = if flags & links != 0 {
            0
        } else {
            sys::AT_SYMLINK_NOFOLLOW
        };
        lookup_at(
            task,
            fd,
            name,
            nofollow
                | if flags & empty != 0 {
                    sys::AT_EMPTY_PATH
                } else {
                    0
                },
        )
    };
    let source = lookup(
        from_fd,
        from,
        sys::MOVE_MOUNT_F_SYMLINKS,
        sys::MOVE_MOUNT_F_EMPTY_PATH,
    )?;
    let target = lookup(
        to_fd,
        to,
        sys::MOVE_MOUNT_T_SYMLINKS,
        sys::MOVE_MOUNT_T_EMPTY_PATH,
    )?;
    let space = task.fs().namespace();
    if flags & sys::MOVE_MOUNT_SET_GROUP != 0 {
        return mount::set_group_from(&space, &source, &target).map(|()| 0);
    }
    mount::move_mount(&space, &source, &target).map(|()| 0)
}

/// `struct mount_attr`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    /// A namespace of users, of which there is one.
    user_namespace: u64,
}

/// `mount_setattr(2)`: changes the attributes of a mount or of all below it.
pub fn sys_mount_setattr(
    task: &Task,
    dirfd: Fd,
    name: UserAddr,
    flags: u32,
    from: UserAddr,
    size: usize,
) -> SysResult {
    const LOOKUP: u32 = sys::AT_EMPTY_PATH | sys::AT_SYMLINK_NOFOLLOW;
    if flags & !(LOOKUP | sys::AT_RECURSIVE | sys::AT_NO_AUTOMOUNT) != 0
        || size < size_of::<MountAttr>()
    {
        return Err(Errno::EINVAL);
    }
    if size > 4096 {
        return Err(Errno::E2BIG);
    }
    may_mount(task)?;
    let mut bytes = fallible::zeroed(size)?;
    uaccess::read_bytes(from, &mut bytes)?;
    let (attr, unknown) = MountAttr::read_from_prefix(&bytes).map_err(|_| Errno::EINVAL)?;
    if unknown.iter().any(|byte| *byte != 0) {
        return Err(Errno::E2BIG);
    }
    let MountAttr {
        set,
        clear,
        propagation: sharing,
        ..
    } = attr;
    if set | clear | sharing == 0 {
        return Ok(0);
    }
    let narrow = |word: u64| u32::try_from(word).map_err(|_| Errno::EINVAL);
    let (set, clear) = (narrow(set)?, narrow(clear)?);
    let sharing = if sharing == 0 {
        None
    } else {
        Some(propagation_type(narrow(sharing)?)?)
    };
    let (set_bits, mut clear_bits) = (bits_of(set)?, bits_of(clear)?);
    let mut times = 0;
    if clear & ATIME != 0 {
        if clear & ATIME != ATIME {
            return Err(Errno::EINVAL);
        }
        clear_bits |= sys::MS_RELATIME | sys::MS_NOATIME;
        times = times_of(set)?;
    } else if set & ATIME != 0 {
        return Err(Errno::EINVAL);
    }
    let path = lookup_at(task, dirfd, name, flags & LOOKUP)?;
    require_top(&path)?;
    let recursive = flags & sys::AT_RECURSIVE != 0;
    let mounts = if recursive {
        path.mount().subtree()
    } else {
        alloc::vec![path.mount().clone()]
    };
    change_flags(&mounts, |old| old & !clear_bits | set_bits | times)?;
    if let Some(how) = sharing {
        mount::set_propagation(&path, how, recursive)?;
    }
    Ok(0)
}

/// Changes the bits of all, or of none.
fn change_flags(mounts: &[Arc<Mount>], change: impl Fn(u32) -> u32) -> Result<(), Errno> {
    let old: alloc::vec::Vec<u32> = mounts.iter().map(|mount| mount.flags()).collect();
    for (done, mount) in mounts.iter().enumerate() {
        if let Err(error) = mount.set_flags(change(mount.flags())) {
            for (mount, old) in mounts.iter().zip(old).take(done) {
                // What was writable may be so again.
                let _ = mount.set_flags(old);
            }
            return Err(error);
        }
    }
    Ok(())
}
