//! An actor: takes its steps when it is its turn, and tells what they did.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use differential::layout::{self, ACTORS, LARGE, PAGE};
use differential::normalise::{self, PidNames};
use differential::program::{
    BadAddress, CANARY, Fill, Memory, NOBODY, Place, Program, Step, Value, pattern,
};
use differential::record::hash;
use differential::spec::{Call, Pointer, ResultKind, Spec, Structure, Target, Type};

use crate::shared::{self, Shared};
use crate::{final_state, sys};

/// Bytes of changed memory that are shown as they are; of longer ones there is a hash.
const SHOWN: usize = 48;

/// A number that no process has.
const UNKNOWN_PID: i64 = 0x3fff_ffff;

/// State that every part of a run needs.
#[derive(Clone, Copy)]
pub struct ActorContext<'a> {
    /// The calls.
    pub spec: &'static Spec,
    /// The program.
    pub program: &'a Program,
    /// The common memory.
    pub shared: &'static Shared,
}

/// The common memory, for handlers of signals, which are given nothing.
static SHARED: AtomicUsize = AtomicUsize::new(0);

/// The first actor's process: starts the others and takes its steps. Does not return.
pub fn lead(context: ActorContext<'_>) -> ! {
    SHARED.store(std::ptr::from_ref(context.shared) as usize, SeqCst);
    sys::handle(sys::INTERRUPT, nothing as *const () as u64);
    let actors = &context.program.actors;
    for (index, actor) in actors
        .iter()
        .enumerate()
        .skip(1)
        .filter(|(_, actor)| !actor.thread)
    {
        if sys::fork() == 0 {
            if actor.nobody {
                sys::become_nobody(NOBODY);
            }
            act(context, index);
            sys::exit(0);
        }
    }
    if actors[0].nobody {
        sys::become_nobody(NOBODY);
    }
    std::thread::scope(|scope| {
        for (index, _) in actors
            .iter()
            .enumerate()
            .skip(1)
            .filter(|(_, actor)| actor.thread)
        {
            scope.spawn(move || act(context, index));
        }
        act(context, 0);
        final_state::tell(&context);
        finish(context, 0);
        // Threads that wait for a turn that does not come end with the process.
        sys::exit(0)
    })
}

/// The address of the handler that notes signals.
pub fn handler() -> u64 {
    note as *const () as u64
}

extern "C" fn nothing(_: i32) {}

extern "C" fn note(signal: i32, information: *const i32, _: *const u8) {
    let at = SHARED.load(SeqCst) as *const Shared;
    // SAFETY: the address was stored before any handler was set, and is mapped for good; the kernel
    // passes the address of a siginfo to handlers with or without SA_SIGINFO on x86-64
    // (arch/x86/kernel/signal.c sets rsi always).
    let (shared, information) = unsafe { (&*at, std::slice::from_raw_parts(information, 8)) };
    // Without SA_SIGINFO there is what the stack held.
    let mut action = [0u64; 4];
    sys::call(
        libc::SYS_rt_sigaction,
        [signal as u64, 0, &raw mut action as u64, 8, 0, 0],
    );
    let told = if action[1] & libc::SA_SIGINFO as u64 == 0 {
        [0; 3]
    } else {
        [information[2], information[4], information[6]]
    };
    let me = sys::thread_id();
    let step = shared
        .actors
        .iter()
        .find(|actor| actor.thread.load(SeqCst) == me)
        .map_or(0, |actor| actor.step.load(SeqCst));
    let mut mask = 0u64;
    sys::call(
        libc::SYS_rt_sigprocmask,
        [0, 0, &raw mut mask as u64, 8, 0, 0],
    );
    let [code, sender, value] = told;
    shared.note(step, [signal, code, sender, value], mask);
}

fn act(context: ActorContext<'_>, me: usize) {
    let own = &context.shared.actors[me];
    own.process.store(std::process::id() as i32, SeqCst);
    own.thread.store(sys::thread_id(), SeqCst);
    sys::forget_runtime();
    let mine = context
        .program
        .steps
        .iter()
        .enumerate()
        .filter(|(_, step)| step.actor == me);
    for (index, step) in mine {
        if !wait_for_turn(context, me, index as u32) {
            break;
        }
        take(context, me, index, step);
    }
    wait_for_turn(context, me, shared::END - 1);
    if me != 0 {
        finish(context, me);
    }
}

fn finish(context: ActorContext<'_>, me: usize) {
    context.shared.actors[me].state.store(shared::DONE, SeqCst);
    context.shared.announce();
}

/// Sleeps until this step may be taken; false if the end has come.
fn wait_for_turn(context: ActorContext<'_>, me: usize, step: u32) -> bool {
    let own = &context.shared.actors[me];
    loop {
        let turn = own.turn.load(SeqCst);
        if turn > step {
            own.state.store(shared::BUSY, SeqCst);
            return turn != shared::END;
        }
        if own.state.swap(shared::IDLE, SeqCst) != shared::IDLE {
            context.shared.announce();
        }
        sys::futex_wait(&own.turn, turn, None);
    }
}

/// Makes the call of a step and tells what it did.
fn take(context: ActorContext<'_>, me: usize, index: usize, step: &Step) {
    let Some(call) = context.spec.call(&step.call) else {
        return;
    };
    let mut desk = Desk {
        context,
        me,
        rooms: 0,
        large: 0,
        memories: Vec::new(),
    };
    let mut arguments = [0; 6];
    for (at, value) in step.arguments.iter().enumerate().take(6) {
        let kind = call.arguments.get(at).map(|(_, kind)| kind);
        arguments[at] = desk.value(value, kind, &at.to_string()) as u64;
    }
    let own = &context.shared.actors[me];
    own.step.store(index as u32, SeqCst);
    let result = if crate::pseudo::is_own(call) {
        // It may sleep on its own account, for a child: that is no wait of the program's.
        crate::pseudo::call(call, arguments)
    } else {
        own.switches.store(sys::voluntary_switches(), SeqCst);
        own.state.store(shared::CALL, SeqCst);
        let result = sys::call(call.number, arguments);
        own.state.store(shared::BUSY, SeqCst);
        result
    };
    let state = &context.shared.steps[index];
    state.result.store(result, SeqCst);
    if matches!(call.answer, ResultKind::Descriptors(_)) && result == 0 {
        let written = sys::peek(arguments[fds_argument(call)], 8);
        for (part, bytes) in state.parts.iter().zip(written.chunks(4)) {
            part.store(
                i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
                SeqCst,
            );
        }
    }
    desk.tell_changes(index);
    if call.concerns_processes() {
        rest(context, index);
    }
    state.done.store(1, SeqCst);
}

/// Waits until the children that steps made have done what this one told them.
fn rest(context: ActorContext<'_>, index: usize) {
    for (made, step) in context.program.steps.iter().enumerate().take(index) {
        let child = context.shared.steps[made].result.load(SeqCst);
        if step.call.starts_with("spawn") && child > 0 {
            crate::pseudo::rest(child);
        }
    }
}

/// Index of the argument that points to the two descriptors a call returns.
fn fds_argument(call: &Call) -> usize {
    call.arguments
        .iter()
        .position(|(_, kind)| matches!(kind, Type::Pointer(_)))
        .unwrap_or(0)
}

/// Memory that a step was given.
struct Given {
    /// Place of the memory among the arguments: `1`, or `1.16` for the target of a field at 16.
    name: String,
    address: u64,
    /// Contents before the call.
    before: Vec<u8>,
    shape: Option<&'static Structure>,
    /// Whether it holds a time, and the call is given it.
    time: Option<bool>,
}

/// Whether so many bytes fit in a small room.
fn is_small(size: usize) -> bool {
    size as u64 <= PAGE - 8
}

/// Bytes of room that a text of this length takes.
fn text_size(length: usize) -> usize {
    length + 1
}

/// Bytes of room that a memory takes.
fn memory_size(memory: &Memory) -> usize {
    memory.size.min(LARGE as usize - 8)
}

/// Adds to `rooms`, small and large ones, those that a value takes.
fn count_rooms(value: &Value, rooms: &mut [u64; 2]) {
    let size = match value {
        Value::Path(path) => text_size(path.len()),
        Value::LongPath(length) => text_size(*length),
        Value::Memory(memory) => {
            let fields = memory.fields.iter();
            fields.for_each(|(_, _, value)| count_rooms(value, rooms));
            memory_size(memory)
        }
        _ => return,
    };
    rooms[usize::from(!is_small(size))] += 1;
}

/// Maps the rooms that the actors of a program take; their processes inherit them. To have all
/// that there may be would make every fork slower.
pub fn map_rooms(program: &Program) {
    let mut most = [[0; 2]; ACTORS];
    for step in &program.steps {
        let mut rooms = [0; 2];
        let values = step.arguments.iter();
        values.for_each(|value| count_rooms(value, &mut rooms));
        let most = &mut most[step.actor];
        *most = [most[0].max(rooms[0]), most[1].max(rooms[1])];
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
    for (actor, [small, large]) in most.into_iter().enumerate() {
        for index in 0..small.min(layout::BUFFERS) {
            sys::map(layout::buffer(actor, index), PAGE, access, flags);
        }
        for index in 0..large.min(layout::LARGE_BUFFERS) {
            sys::map(layout::large_buffer(actor, index), LARGE, access, flags);
        }
    }
}

/// Where the memory of a step is made.
struct Desk<'a> {
    context: ActorContext<'a>,
    me: usize,
    rooms: u64,
    large: u64,
    memories: Vec<Given>,
}

impl Desk<'_> {
    fn value(&mut self, value: &Value, kind: Option<&'static Type>, name: &str) -> i64 {
        let number = self.any_value(value, kind, name);
        // -1 is everybody and 1 is who runs the machine: a step whose own call failed must not name
        // them.
        let forbidden = kind == Some(&Type::Who) && (number == 1 || number as i32 == -1);
        if forbidden { UNKNOWN_PID } else { number }
    }

    fn any_value(&mut self, value: &Value, kind: Option<&'static Type>, name: &str) -> i64 {
        let shared = self.context.shared;
        match value {
            Value::Number(number) => *number,
            Value::Result(step, 0) => match shared.steps[*step].result.load(SeqCst) {
                -4095..=-1 => -1,
                result => result,
            },
            Value::Result(step, part) => shared.steps[*step].parts[(part - 1) % 2]
                .load(SeqCst)
                .into(),
            Value::Who(actor) => shared.actors[actor % ACTORS].thread.load(SeqCst).into(),
            Value::Path(path) => self.text(path.as_bytes()),
            Value::LongPath(length) => self.text(&vec![b'y'; *length]),
            Value::BadAddress(BadAddress::Null) => 0,
            Value::BadAddress(BadAddress::Hole) => layout::HOLE as i64,
            Value::BadAddress(BadAddress::ReadOnly) => layout::READ_ONLY as i64,
            Value::BadAddress(BadAddress::NoAccess) => layout::NO_ACCESS as i64,
            Value::BadAddress(BadAddress::Kernel) => layout::KERNEL as i64,
            Value::Handler => handler() as i64,
            Value::Restorer => sys::restorer() as i64,
            Value::Memory(memory) => self.memory(memory, kind, name) as i64,
        }
    }

    fn text(&mut self, text: &[u8]) -> i64 {
        let room = self.buffer(text_size(text.len())).0;
        sys::poke(room, &[text, &[0]].concat());
        room as i64
    }

    /// A room for so many bytes: its start and its end, behind which there is a hole.
    fn buffer(&mut self, size: usize) -> (u64, u64) {
        if is_small(size) {
            let room = layout::buffer(self.me, self.rooms.min(layout::BUFFERS - 1));
            self.rooms += 1;
            (room, room + PAGE)
        } else {
            let room = layout::large_buffer(self.me, self.large.min(layout::LARGE_BUFFERS - 1));
            self.large += 1;
            (room, room + LARGE)
        }
    }

    fn memory(&mut self, memory: &Memory, kind: Option<&'static Type>, name: &str) -> u64 {
        let size = memory_size(memory);
        let (start, end) = self.buffer(size);
        let (address, there) = match memory.place {
            Place::At(offset) => (start + offset.min(8) as u64, size),
            Place::Cut(bytes) => (
                end - (size - bytes.min(size)) as u64,
                size - bytes.min(size),
            ),
        };
        let (shape, time) = shape(self.context.spec, kind);
        let mut bytes: Vec<u8> = match memory.fill {
            Fill::Zero => vec![0; size],
            Fill::Pattern(seed) => (0..size).map(|at| pattern(seed, at)).collect(),
            Fill::Canary => vec![CANARY; size],
        };
        let place = self.memories.len();
        self.memories.push(Given {
            name: name.to_owned(),
            address,
            before: Vec::new(),
            shape,
            time,
        });
        for (offset, width, value) in &memory.fields {
            let kind = shape.and_then(|shape| field_kind(shape, *offset));
            let value = self
                .value(value, kind, &format!("{name}.{offset}"))
                .to_le_bytes();
            let width = (*width).min(8);
            if let Some(field) = bytes.get_mut(*offset..*offset + width) {
                field.copy_from_slice(&value[..width]);
            }
        }
        bytes.truncate(there);
        sys::poke(address, &bytes);
        self.memories[place].before = bytes;
        address
    }

    /// Lines on the memories that the call changed.
    fn tell_changes(&self, index: usize) {
        let people = RunPidNames(self.context);
        for given in &self.memories {
            let mut now = sys::peek(given.address, given.before.len());
            if now == given.before {
                continue;
            }
            if let Some(shape) = given.shape {
                normalise::structure(&mut now, shape, &people);
            }
            if let Some(given) = given.time
                && !normalise::time_left(&mut now)
                && given
            {
                continue;
            }
            self.context.shared.steps[index].text.push(&format!(
                "{} {}\n",
                given.name,
                shown(&now)
            ));
        }
    }
}

/// Layout of the memory of an argument or field; of a time, whether the call is given it.
fn shape(
    spec: &'static Spec,
    kind: Option<&'static Type>,
) -> (Option<&'static Structure>, Option<bool>) {
    match kind {
        Some(Type::Pointer(Pointer {
            target: Target::Structure(name),
            ..
        })) => (Some(spec.structure(name)), None),
        Some(Type::Pointer(Pointer { target, input, .. })) => {
            (None, normalise::is_time(target).then_some(*input))
        }
        _ => (None, None),
    }
}

fn field_kind(shape: &'static Structure, offset: usize) -> Option<&'static Type> {
    let offset = offset % shape.size.max(1);
    shape
        .fields
        .iter()
        .find(|field| field.offset == offset)?
        .kind
        .as_ref()
}

/// Bytes as text: as they are if they are few, else their number and a hash.
pub fn shown(bytes: &[u8]) -> String {
    if bytes.len() <= SHOWN {
        return bytes.iter().fold(String::new(), |mut text, byte| {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        });
    }
    format!("{} bytes, hash {:016x}", bytes.len(), hash(bytes))
}

/// Names of process and thread numbers in this run.
pub struct RunPidNames<'a>(pub ActorContext<'a>);

impl PidNames for RunPidNames<'_> {
    fn token(&self, pid: i64) -> Option<i64> {
        let Self(ActorContext {
            spec,
            program,
            shared,
        }) = self;
        let actor = shared
            .actors
            .iter()
            .position(|actor| i64::from(actor.thread.load(SeqCst)) == pid);
        let made = |(index, step): (usize, &Step)| {
            let is_pid = spec
                .call(&step.call)
                .is_some_and(|call| call.answer == ResultKind::Pid);
            (is_pid && shared.steps[index].result.load(SeqCst) == pid).then_some(100 + index as i64)
        };
        actor
            .map(|actor| 1 + actor as i64)
            .or_else(|| program.steps.iter().enumerate().find_map(made))
    }
}
