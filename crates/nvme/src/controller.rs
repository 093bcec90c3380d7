//! A controller: bringing it up (section 7.6.1), and again when it broke a rule.

use alloc::vec::Vec;
use core::borrow::BorrowMut;
use core::fmt;

use arrayvec::ArrayVec;
use virtqueue::{Address, Memory};

use crate::PAGE;
use crate::command::{Command, cns};
use crate::completion::{Completion, Failure, Rule, Status};
use crate::identify::{self, Identity, Namespace, Nonsense};
use crate::passed::Plan;
use crate::queue::{Data, Queue, Refusal};
use crate::registers::{Capabilities, Unusable, at, cc, csts};
use crate::secondary::{self, Flexible, NoSecondaries, Secondaries};

/// The way to a controller.
pub trait Function {
    /// Number of bytes of registers that are there.
    fn bytes(&self) -> usize;

    /// Reads a register; `at` is a multiple of 4 within [`Self::bytes`].
    fn read(&self, at: usize) -> u32;

    /// Writes a register.
    fn write(&self, at: usize, value: u32);

    /// Lets the controller reach memory and send messages: it has stopped, and nothing that it was
    /// told before counts.
    fn let_reach(&self);

    /// Resets the function over the bus; true if it is seen to have stopped.
    fn force_reset(&self) -> bool;

    /// Number of virtual functions that the function has: their controllers are put online.
    fn virtual_functions(&self) -> u16 {
        0
    }

    /// Takes in whether the controllers of virtual functions are online, each time that they were
    /// to be put there.
    fn put_online(&self, _: Result<Secondaries, NoSecondaries>) {}

    /// Lets time pass before the controller is looked at for the `n`th time: from [`QUICK_LOOKS`]
    /// on, a millisecond.
    fn pause(&self, n: u32);
}

/// Looks at a controller without a pause in between.
pub const QUICK_LOOKS: u32 = 64;
/// Looks for the end of a command of the admin queue, at most.
const ADMIN_LOOKS: u32 = 30_000;
/// Entries of the admin queue.
const ADMIN_ENTRIES: u16 = 16;

/// Size of the queues, as the driver wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Queue pairs, at most, at least 1: one for each message.
    pub queues: u16,
    /// Entries of each, at most.
    pub entries: u16,
}

/// Why a controller cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// Capabilities of the controller do not do.
    Unusable(Unusable),
    /// Description of the controller by itself does not do.
    Nonsense(Nonsense),
    /// Controller that is not ready within the time that it says, or says that it has failed.
    NotReady,
    /// Controller that broke a rule.
    Broken(Rule),
    /// Controller that says that it cannot do what it must.
    Refused(Status),
    /// A command of the admin queue had no answer.
    Late,
    /// There is no memory.
    NoMemory,
    /// Controller that does not stop, and may still reach memory.
    Stuck,
    /// Controller that came back from a reset as another one.
    Changed,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unusable(error) => error.fmt(f),
            Self::Nonsense(error) => error.fmt(f),
            Self::NotReady => f.write_str("it does not get ready"),
            Self::Broken(error) => error.fmt(f),
            Self::Refused(status) => write!(f, "it refuses what it must do: {status}"),
            Self::Late => f.write_str("it does not answer"),
            Self::NoMemory => f.write_str("no memory"),
            Self::Stuck => f.write_str("it does not stop"),
            Self::Changed => f.write_str("it came back as another one"),
        }
    }
}

impl core::error::Error for StartError {}

impl From<Unusable> for StartError {
    fn from(error: Unusable) -> Self {
        Self::Unusable(error)
    }
}

impl From<Nonsense> for StartError {
    fn from(error: Nonsense) -> Self {
        Self::Nonsense(error)
    }
}

impl From<Rule> for StartError {
    fn from(rule: Rule) -> Self {
        Self::Broken(rule)
    }
}

/// The admin queue, and a page for the controller's answers. Nobody waits for its interrupts: who
/// asks looks.
#[derive(Debug)]
pub struct Admin<M> {
    queue: Queue<M, u32>,
    /// Number that the last command is known by.
    next: u32,
    buffer: Address,
    /// A copy of the page: what counts.
    answer: Vec<u8>,
    /// The command of a program, of which there is one at a time.
    passing: Option<Passing>,
}

/// Command of a program in the admin queue.
#[derive(Clone, Copy, Debug)]
enum Passing {
    /// The controller has the command, known by this.
    Underway(u32),
    /// The command is over.
    Over(Answer),
}

/// Answer to a command of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The first word of the completion; 0 of a command that failed.
    pub word: u32,
    /// The status field, without the phase: 0 for success.
    pub field: u16,
}

impl Answer {
    /// The answer in a completion; `None` if the controller gave none.
    #[must_use]
    pub fn of<V>(completion: &Completion<V>) -> Option<Self> {
        let word = match completion.outcome {
            Ok(word) => word,
            Err(Failure::Status(_)) => 0,
            Err(Failure::Gone) => return None,
        };
        Some(Self {
            word,
            field: completion.field,
        })
    }
}

/// How far a program's command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// The controller has the command, and its data.
    Underway,
    /// The command is over.
    Over(Answer),
    /// The controller was stopped before it had done it.
    Stopped,
}

/// A controller that was brought up.
#[derive(Debug)]
pub struct Controller<F> {
    function: F,
    capabilities: Capabilities,
    identity: Identity,
}

/// A controller with what it has.
#[derive(Debug)]
pub struct Started<F, M, V> {
    /// The controller.
    pub controller: Controller<F>,
    /// Admin queue of the controller.
    pub admin: Admin<M>,
    /// Queue pairs for reading and writing.
    pub queues: Vec<Queue<M, V>>,
    /// Namespaces that can be used.
    pub namespaces: Vec<Namespace>,
    /// Namespaces that cannot be used, and why; `None` for those behind the last that is used.
    pub unusable: Vec<(u32, Option<Nonsense>)>,
}

impl<F: Function> Controller<F> {
    /// Brings a controller up with as many queue pairs as are wanted and there. `memory` makes room
    /// for a queue: so many bytes of zeros, from the beginning of a page on.
    ///
    /// # Errors
    /// If the controller, or memory, does not do. It is stopped then, if that is possible.
    pub fn start<M: Memory, V>(
        function: F,
        shape: Shape,
        memory: impl FnMut(u64) -> Option<(M, Address)>,
    ) -> Result<Started<F, M, V>, StartError> {
        let low = function.read(at::CAP);
        let capabilities = Capabilities::parse(low, function.read(at::CAP + 4))?;
        let way = Way {
            function: &function,
            capabilities,
        };
        let parts = way.start(shape, memory).inspect_err(|_| {
            // Nothing can be done about one that does not even do this.
            let _ = way.stop();
        })?;
        let (identity, admin, queues, namespaces, unusable) = parts;
        Ok(Started {
            controller: Self {
                function,
                capabilities,
                identity,
            },
            admin,
            queues,
            namespaces,
            unusable,
        })
    }

    fn way(&self) -> Way<'_, F> {
        Way {
            function: &self.function,
            capabilities: self.capabilities,
        }
    }

    /// Description of the controller by itself.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether the controller says that it has failed (section 3.1.6), is not there any more, or
    /// was stopped by somebody else, as one of a virtual function is with its primary:
    /// [`Self::recover`].
    #[must_use]
    pub fn needs_reset(&self) -> bool {
        let status = self.function.read(at::CSTS);
        status & csts::FATAL != 0 || status & csts::READY == 0
    }

    /// Tells the controller of what was submitted and taken since the last such call.
    pub fn ring<M: Memory, V>(&self, queue: &mut Queue<M, V>) {
        self.way().ring(queue);
    }

    /// Has the controller abort a command, whose value is the one, and does not wait for that: if
    /// it is aborted, it is over with a status that says so.
    pub fn abort<M: Memory, V>(
        &self,
        admin: &mut Admin<M>,
        queue: &Queue<M, V>,
        is_it: impl FnMut(&V) -> bool,
    ) {
        if let Some(id) = queue.find(is_it) {
            // A controller that breaks rules here, or has no room, is reset a little later.
            let _ = admin.submit(Command::abort(queue.number(), id), Data::None);
            self.way().ring(&mut admin.queue);
        }
    }

    /// Gives the controller a command of a program, with pages that hold all of its data. The
    /// caller gives it no other one, and keeps the pages, until [`Self::passed`] says that it is
    /// not underway.
    ///
    /// # Errors
    /// Says why the controller was not given the command.
    pub fn pass<M: Memory>(
        &self,
        admin: &mut Admin<M>,
        plan: &Plan,
        pages: &[Address],
    ) -> Result<(), StartError> {
        let known_by = admin.submit(plan.command, Data::Pages(pages))?;
        admin.passing = Some(Passing::Underway(known_by));
        self.way().ring(&mut admin.queue);
        Ok(())
    }

    /// How far the command is that was passed last.
    ///
    /// # Errors
    /// The rule that the controller broke: it is underway until the controller was stopped.
    pub fn passed<M: Memory>(&self, admin: &mut Admin<M>) -> Result<Passed, Rule> {
        admin.take_all()?;
        self.way().ring(&mut admin.queue);
        Ok(match admin.passing {
            Some(Passing::Underway(_)) => Passed::Underway,
            Some(Passing::Over(answer)) => {
                admin.passing = None;
                Passed::Over(answer)
            }
            None => Passed::Stopped,
        })
    }

    /// Lets time pass before the controller is looked at for the `n`th time.
    pub fn pause(&self, n: u32) {
        self.function.pause(n);
    }

    /// Resets a controller that broke a rule, or that does not answer, and offers everything again
    /// that was in flight. What was offered again before ends with [`Failure::Gone`], and so does
    /// everything if the controller does not come back as the same. `queues` are all of its queues.
    ///
    /// # Errors
    /// If the controller did not come back. If it did not even stop, it may still reach memory:
    /// then nothing has ended, and all is in flight. In each case this may be tried again.
    pub fn recover<M: Memory, V>(
        &self,
        admin: &mut Admin<M>,
        namespaces: &[Namespace],
        queues: &mut [impl BorrowMut<Queue<M, V>>],
        mut ended: impl FnMut(Completion<V>),
    ) -> Result<(), StartError> {
        let way = self.way();
        self.stop(queues, &mut ended)?;
        let back = self.bring_back(admin, namespaces, queues).inspect_err(|_| {
            // It has stopped, and shall not begin halfway.
            let _ = way.stop();
            admin.give_up();
        });
        for queue in &mut *queues {
            let queue = queue.borrow_mut();
            if back.is_ok() {
                queue.offer_again(&mut ended);
                way.ring(queue);
            } else {
                queue.give_up(&mut ended);
            }
        }
        back
    }

    /// Resets a controller that nobody is to use any more: everything that is in flight ends with
    /// [`Failure::Gone`], and so does what comes. `queues` are all of its queues.
    ///
    /// # Errors
    /// If it did not stop: then nothing has ended. This may be tried again.
    pub fn end<M: Memory, V>(
        &self,
        admin: &mut Admin<M>,
        queues: &mut [impl BorrowMut<Queue<M, V>>],
        mut ended: impl FnMut(Completion<V>),
    ) -> Result<(), StartError> {
        self.stop(queues, &mut ended)?;
        admin.give_up();
        for queue in queues {
            queue.borrow_mut().give_up(&mut ended);
        }
        Ok(())
    }

    /// Resets the controller, and takes back what is in flight.
    fn stop<M: Memory, V>(
        &self,
        queues: &mut [impl BorrowMut<Queue<M, V>>],
        mut ended: impl FnMut(Completion<V>),
    ) -> Result<(), StartError> {
        self.way().stop()?;
        for queue in queues {
            let queue = queue.borrow_mut();
            // What it completed in a queue in which it broke no rule is over.
            while let Ok(Some(completion)) = queue.take() {
                ended(completion);
            }
            queue.take_back();
        }
        Ok(())
    }

    fn bring_back<M: Memory, V>(
        &self,
        admin: &mut Admin<M>,
        namespaces: &[Namespace],
        queues: &[impl BorrowMut<Queue<M, V>>],
    ) -> Result<(), StartError> {
        let way = self.way();
        let low = self.function.read(at::CAP);
        if Capabilities::parse(low, self.function.read(at::CAP + 4))? != self.capabilities {
            return Err(StartError::Changed);
        }
        way.enable(admin)?;
        // Firmware may have been renewed.
        let found = Identity {
            firmware: self.identity.firmware,
            ..way.identify(admin)?
        };
        if found != self.identity {
            return Err(StartError::Changed);
        }
        for namespace in namespaces {
            if way.identify_namespace(admin, namespace.id)? != Ok(*namespace) {
                return Err(StartError::Changed);
            }
        }
        if way.set_queues(admin, queues.len() as u16)? < queues.len() as u16 {
            return Err(StartError::Changed);
        }
        for queue in queues {
            way.create(admin, queue.borrow())?;
        }
        // They went offline with it.
        way.start_secondaries(admin)
    }
}

/// The way to a controller, with what is needed to go it.
struct Way<'a, F> {
    function: &'a F,
    capabilities: Capabilities,
}

type Parts<M, V> = (
    Identity,
    Admin<M>,
    Vec<Queue<M, V>>,
    Vec<Namespace>,
    Vec<(u32, Option<Nonsense>)>,
);

impl<F: Function> Way<'_, F> {
    fn start<M: Memory, V>(
        &self,
        shape: Shape,
        mut memory: impl FnMut(u64) -> Option<(M, Address)>,
    ) -> Result<Parts<M, V>, StartError> {
        let room = self.capabilities.queues_within(self.function.bytes());
        let most = self
            .capabilities
            .entries
            .min(Queue::<M, V>::MAX_ENTRIES.into()) as u16;
        let wanted = shape.queues.min(u16::try_from(room).unwrap_or(u16::MAX));
        if wanted == 0 {
            return Err(Unusable::Short.into());
        }
        // What firmware began ends before the controller is told of memory.
        self.stop()?;
        let mut queue = |number, entries| {
            let bytes = Queue::<M, V>::bytes(entries);
            // The controller's answers have a page behind its own queue.
            let more = if number == 0 { PAGE as u64 } else { 0 };
            let (memory, base) = memory(bytes + more).ok_or(StartError::NoMemory)?;
            Ok::<_, StartError>((number, memory, base, entries))
        };
        let (number, own, base, entries) = queue(0, most.min(ADMIN_ENTRIES))?;
        let buffer = base.plus(Queue::<M, u32>::bytes(entries));
        let mut answer = Vec::new();
        answer
            .try_reserve_exact(PAGE)
            .map_err(|_| StartError::NoMemory)?;
        answer.resize(PAGE, 0);
        let mut admin = Admin {
            queue: Queue::new(number, own, base, entries).ok_or(StartError::NoMemory)?,
            next: 0,
            buffer,
            answer,
            passing: None,
        };
        self.enable(&mut admin)?;
        let identity = self.identify(&mut admin)?;
        let virtual_functions = self.function.virtual_functions();
        if virtual_functions > 0 && self.give_up_share(&mut admin, &identity)? {
            // That happens with a reset of the function.
            self.stop()?;
            if !self.function.force_reset() {
                return Err(StartError::Stuck);
            }
            self.enable(&mut admin)?;
        }
        let (namespaces, unusable) = self.find_namespaces(&mut admin, &identity)?;
        let count = self.set_queues(&mut admin, wanted)?.min(wanted);
        let mut queues = Vec::new();
        queues
            .try_reserve_exact(usize::from(count))
            .map_err(|_| StartError::NoMemory)?;
        for n in 1..=count {
            let (number, memory, base, entries) = queue(n, shape.entries.clamp(2, most))?;
            let mut queue =
                Queue::new(number, memory, base, entries).ok_or(StartError::NoMemory)?;
            queue.take_runs(identity.takes_runs);
            self.create(&mut admin, &queue)?;
            queues.push(queue);
        }
        self.start_secondaries(&mut admin)?;
        Ok((identity, admin, queues, namespaces, unusable))
    }

    /// Has what can be shared out be nobody's; true if some of it is the controller's own until its
    /// function is reset.
    fn give_up_share<M: Memory>(
        &self,
        admin: &mut Admin<M>,
        identity: &Identity,
    ) -> Result<bool, StartError> {
        let flexible = match self.describe(admin, cns::PRIMARY, 0) {
            Ok(bytes) => Flexible::parse(bytes),
            // It is told when the others are to go online.
            Err(StartError::Refused(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
        let mut has_some = false;
        for (resource, flexible) in secondary::RESOURCES.into_iter().zip(flexible) {
            if flexible.own > 0 {
                let command = Command::manage(identity.number, secondary::OWN_SHARE, resource, 0);
                match self.ask(admin, command, Data::None) {
                    Ok(_) => has_some = true,
                    Err(StartError::Refused(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(has_some)
    }

    /// Puts the controllers of virtual functions online, if there are such; their not being so is
    /// told, and no error of this one.
    fn start_secondaries<M: Memory>(&self, admin: &mut Admin<M>) -> Result<(), StartError> {
        let count = self.function.virtual_functions();
        if count == 0 {
            return Ok(());
        }
        let outcome = match self.try_start_secondaries(admin, count) {
            Ok(outcome) => outcome,
            Err(StartError::Refused(status)) => Err(NoSecondaries::Refused(status)),
            Err(error) => return Err(error),
        };
        self.function.put_online(outcome);
        Ok(())
    }

    fn try_start_secondaries<M: Memory>(
        &self,
        admin: &mut Admin<M>,
        count: u16,
    ) -> Result<Result<Secondaries, NoSecondaries>, StartError> {
        let flexible = Flexible::parse(self.describe(admin, cns::PRIMARY, 0)?);
        let planned = match Secondaries::plan(flexible, count) {
            Ok(planned) => planned,
            Err(short) => return Ok(Err(short)),
        };
        let mut online = 0;
        let mut first = 0;
        // The list has so many at a time, by their numbers.
        loop {
            let command = Command::identify_from(cns::SECONDARIES, first);
            let bytes = self.describe_by(admin, command)?;
            let mut numbers: ArrayVec<u16, { secondary::MAX_LISTED }> =
                secondary::parse_list(bytes, count).collect();
            numbers.retain(|number| *number >= first);
            for number in numbers.iter().take(usize::from(count - online)) {
                for resource in secondary::RESOURCES {
                    let share = planned.share(resource);
                    let command = Command::manage(*number, secondary::SHARE, resource, share);
                    self.ask(admin, command, Data::None)?;
                }
                let command = Command::manage(*number, secondary::ONLINE, 0, 0);
                self.ask(admin, command, Data::None)?;
                online += 1;
            }
            match numbers.last().and_then(|last| last.checked_add(1)) {
                Some(next) if online < count => first = next,
                _ => break,
            }
        }
        Ok((online == count)
            .then_some(planned)
            .ok_or(NoSecondaries::Missing))
    }

    fn status(&self) -> u32 {
        self.function.read(at::CSTS)
    }

    /// Looks until the controller says that it is ready, or not any more, as long as it says that
    /// this takes.
    fn wait_ready(&self, is_ready: bool) -> bool {
        for n in 0..=QUICK_LOOKS + self.capabilities.ready_ms {
            let status = self.status();
            // One that has failed gets ready no more, and one that is not there says nothing.
            if status == u32::MAX || (is_ready && status & csts::FATAL != 0) {
                return false;
            }
            if (status & csts::READY != 0) == is_ready {
                return true;
            }
            self.function.pause(n);
        }
        false
    }

    /// Stops the controller: by its own switch, which has worked when it says that it is not ready
    /// any more (section 7.3.2), or over the bus.
    fn stop(&self) -> Result<(), StartError> {
        self.function.write(at::CC, 0);
        if self.wait_ready(false) || self.function.force_reset() {
            Ok(())
        } else {
            Err(StartError::Stuck)
        }
    }

    /// Switches a stopped controller on, with an empty queue of its own.
    fn enable<M: Memory>(&self, admin: &mut Admin<M>) -> Result<(), StartError> {
        admin.give_up();
        let queue = &mut admin.queue;
        queue.come_back();
        self.function.let_reach();
        let less = u32::from(queue.entries() - 1);
        self.function.write(at::AQA, less << 16 | less);
        for (register, place) in [
            (at::ASQ, queue.submissions()),
            (at::ACQ, queue.completions()),
        ] {
            self.function.write(register, place.number() as u32);
            let high = (place.number() >> 32) as u32;
            self.function.write(register + 4, high);
        }
        self.function.write(at::CC, cc::LAYOUT | cc::ENABLE);
        if self.wait_ready(true) {
            Ok(())
        } else {
            Err(StartError::NotReady)
        }
    }

    fn ring<M: Memory, V>(&self, queue: &mut Queue<M, V>) {
        let number = queue.number();
        let [tail, head] = queue.untold();
        if let Some(head) = head {
            let doorbell = self.capabilities.head(number);
            self.function.write(doorbell, head.into());
        }
        if let Some(tail) = tail {
            let doorbell = self.capabilities.tail(number);
            self.function.write(doorbell, tail.into());
        }
    }

    /// Does a command of the admin queue; the first word of its completion.
    fn ask<M: Memory>(
        &self,
        admin: &mut Admin<M>,
        command: Command,
        data: Data<'_>,
    ) -> Result<u32, StartError> {
        let known_by = admin.submit(command, data)?;
        self.ring(&mut admin.queue);
        for n in 0..ADMIN_LOOKS {
            while let Some(Completion { value, outcome, .. }) = admin.take()? {
                if value == known_by {
                    self.ring(&mut admin.queue);
                    return outcome.map_err(|failure| match failure {
                        Failure::Status(status) => StartError::Refused(status),
                        Failure::Gone => StartError::Changed,
                    });
                }
            }
            if self.status() & csts::FATAL != 0 {
                return Err(StartError::NotReady);
            }
            self.function.pause(n);
        }
        Err(StartError::Late)
    }

    /// Has the controller describe something.
    fn describe<'a, M: Memory>(
        &self,
        admin: &'a mut Admin<M>,
        structure: u8,
        namespace: u32,
    ) -> Result<&'a [u8; identify::BYTES], StartError> {
        self.describe_by(admin, Command::identify(structure, namespace))
    }

    /// Has the controller answer a command with a page.
    fn describe_by<'a, M: Memory>(
        &self,
        admin: &'a mut Admin<M>,
        command: Command,
    ) -> Result<&'a [u8; identify::BYTES], StartError> {
        let memory = |_| StartError::from(Rule::Memory);
        let buffer = admin.buffer;
        // What the controller does not write is zeros, and not what it wrote before.
        admin.answer.fill(0);
        let own = admin.queue.memory();
        own.write(buffer, &admin.answer).map_err(memory)?;
        self.ask(admin, command, Data::Pages(&[buffer]))?;
        let own = admin.queue.memory();
        own.read(buffer, &mut admin.answer).map_err(memory)?;
        admin.answer.first_chunk().ok_or(StartError::NoMemory)
    }

    fn identify<M: Memory>(&self, admin: &mut Admin<M>) -> Result<Identity, StartError> {
        let bytes = self.describe(admin, cns::CONTROLLER, 0)?;
        Ok(Identity::parse(bytes)?)
    }

    fn identify_namespace<M: Memory>(
        &self,
        admin: &mut Admin<M>,
        id: u32,
    ) -> Result<Result<Namespace, Nonsense>, StartError> {
        let bytes = self.describe(admin, cns::NAMESPACE, id)?;
        Ok(Namespace::parse(id, bytes))
    }

    #[expect(clippy::type_complexity, reason = "parts of what is returned")]
    fn find_namespaces<M: Memory>(
        &self,
        admin: &mut Admin<M>,
        identity: &Identity,
    ) -> Result<(Vec<Namespace>, Vec<(u32, Option<Nonsense>)>), StartError> {
        let bytes = self.describe(admin, cns::NAMESPACES, 0)?;
        let (ids, has_more) = identify::parse_list(bytes, identity.last_namespace)?;
        let last = ids.last().copied().unwrap_or(0);
        let (mut namespaces, mut unusable) = (Vec::new(), Vec::new());
        for id in ids {
            match self.identify_namespace(admin, id)? {
                Ok(namespace) => namespaces.push(namespace),
                Err(nonsense) => unusable.push((id, Some(nonsense))),
            }
        }
        if has_more {
            unusable.push((last + 1, None));
        }
        Ok((namespaces, unusable))
    }

    /// Asks for so many queue pairs; how many there are.
    fn set_queues<M: Memory>(&self, admin: &mut Admin<M>, count: u16) -> Result<u16, StartError> {
        let answer = self.ask(admin, Command::set_queues(count), Data::None)?;
        let least = (answer & 0xffff).min(answer >> 16);
        Ok((least + 1).min(u16::MAX.into()) as u16)
    }

    /// Makes a queue pair known, whose message has the number before its own.
    fn create<M: Memory, V>(
        &self,
        admin: &mut Admin<M>,
        queue: &Queue<M, V>,
    ) -> Result<(), StartError> {
        let (number, entries) = (queue.number(), queue.entries());
        let completions = Command::create_completion_queue(number, entries, number - 1);
        self.ask(admin, completions, Data::Pages(&[queue.completions()]))?;
        let submissions = Command::create_submission_queue(number, entries);
        self.ask(admin, submissions, Data::Pages(&[queue.submissions()]))?;
        Ok(())
    }
}

impl<M: Memory> Admin<M> {
    /// Takes a command that is over, and notes a program's.
    fn take(&mut self) -> Result<Option<Completion<u32>>, Rule> {
        let over = self.queue.take()?;
        if let (Some(completion), Some(Passing::Underway(known_by))) = (&over, self.passing)
            && completion.value == known_by
        {
            self.passing = Answer::of(completion).map(Passing::Over);
        }
        Ok(over)
    }

    fn take_all(&mut self) -> Result<(), Rule> {
        while self.take()?.is_some() {}
        Ok(())
    }

    /// Forgets what the controller had: it has stopped.
    fn give_up(&mut self) {
        self.queue.take_back();
        self.queue.give_up(drop);
        if let Some(Passing::Underway(_)) = self.passing {
            self.passing = None;
        }
    }

    /// Submits a command; what it is known by. What is over, and nobody waits for, makes room.
    fn submit(&mut self, command: Command, data: Data<'_>) -> Result<u32, StartError> {
        self.take_all()?;
        self.next = self.next.wrapping_add(1);
        let submitted = self.queue.submit(command, data, self.next);
        submitted.map_err(|refused| match refused.why {
            Refusal::Broken(rule) => StartError::Broken(rule),
            Refusal::Full | Refusal::TooLarge => StartError::Late,
            Refusal::Gone => StartError::Changed,
        })?;
        Ok(self.next)
    }
}
