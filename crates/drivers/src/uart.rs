//! Serial ports with a 16550 chip: `/dev/ttyS0` to `/dev/ttyS3`.
//!
//! Each port has one thread. The interrupt only wakes it; it empties the receive buffer into the
//! terminal and tells writers when the transmitter is free. When the terminal has no room the
//! thread leaves the receive buffer alone, and the sender is held back by the hardware (QEMU then
//! keeps the bytes), so none is lost in the kernel.
//!
//! Writers send on their own, 16 bytes at a time, and wait only when the transmitter is busy. The
//! registers are described in the data sheet of National Semiconductor's PC16550D.

use alloc::format;
use alloc::sync::Arc;

use fs::poll::{PollQueue, PollTable};
use fs::tty::{self, Termios, Tty, TtyDriver};
use fs::{DeviceId, Result};
use guard::irq::{self, IsaIrq};
use guard::port::Ports;
use task::{Event, Mutex, Once};

/// The ports a PC has: base and interrupt line.
const PORTS: [(u16, u8); 4] = [(0x3f8, 4), (0x2f8, 3), (0x3e8, 4), (0x2e8, 3)];

/// Received byte, byte to send; with the divisor latch open, the divisor's low byte.
const DATA: u16 = 0;
/// Interrupt enable; with the divisor latch open, the divisor's high byte.
const IER: u16 = 1;
/// Interrupt identification (read), FIFO control (write).
const IIR: u16 = 2;
const FCR: u16 = 2;
/// Line control register: word length, parity, divisor latch.
const LCR: u16 = 3;
/// Modem control register: outputs, among them the interrupt gate.
const MCR: u16 = 4;
/// Line status register: data received, transmitter empty, errors.
const LSR: u16 = 5;
/// Modem status register: inputs and their changes.
const MSR: u16 = 6;
/// Scratch register, a byte without a meaning: its presence shows a 16450 or better.
const SCR: u16 = 7;

const IER_RDI: u8 = 1;
const IER_THRI: u8 = 2;
const IER_RLSI: u8 = 4;
const IIR_NO_INT: u8 = 1;
const IIR_ID: u8 = 0x0e;
const IIR_THRI: u8 = 2;
const IIR_RDI: u8 = 4;
const IIR_RLSI: u8 = 6;
const IIR_RX_TIMEOUT: u8 = 0x0c;
/// FIFOs on and cleared, interrupt at 14 received bytes.
const FCR_SETUP: u8 = 0xc7;
const FIFO_TRIGGER: usize = 14;
const FIFO_SIZE: usize = 16;
const LCR_8N1: u8 = 3;
const LCR_DLAB: u8 = 0x80;
/// Ready to send and receive; interrupts reach the line.
const MCR_SETUP: u8 = 0x0b;
const LSR_DR: u8 = 1;
const LSR_THRE: u8 = 0x20;
const LSR_TEMT: u8 = 0x40;
/// Speed at divisor 1, bits per second.
const BASE_SPEED: u32 = 115_200;
/// Most bytes that a writer sends before it lets others have the registers.
const TRANSMIT_BURST: usize = 256;

/// Signalled by the interrupt of the port with the same index. Two ports share a line; both look.
static EVENTS: [Event; 4] = [const { Event::new() }; 4];

fn irq3() {
    EVENTS[1].set();
    EVENTS[3].set();
}

fn irq4() {
    EVENTS[0].set();
    EVENTS[2].set();
}

/// The chip. Its lock keeps the divisor latch, which hides the data register, from everybody else.
struct Chip {
    ports: Ports,
    /// Value of the interrupt enable register.
    ier: u8,
    speed: u32,
}

impl Chip {
    /// Sets the chip up, if there is one.
    fn probe(ports: Ports) -> Option<Self> {
        for pattern in [0x5a, 0xa5] {
            ports.write8(SCR, pattern);
            if ports.read8(SCR) != pattern {
                return None;
            }
        }
        let mut chip = Self {
            ports,
            ier: 0,
            speed: 0,
        };
        chip.set_interrupts(0);
        chip.ports.write8(FCR, FCR_SETUP);
        chip.set_speed(BASE_SPEED);
        chip.ports.write8(MCR, MCR_SETUP);
        // Whatever was pending is not ours.
        for register in [LSR, DATA, IIR, MSR] {
            let _ = chip.ports.read8(register);
        }
        chip.set_interrupts(IER_RDI | IER_RLSI);
        Some(chip)
    }

    fn set_interrupts(&mut self, ier: u8) {
        self.ier = ier;
        self.ports.write8(IER, ier);
    }

    /// Sets the speed in bits per second, as near as the divisor allows.
    fn set_speed(&mut self, speed: u32) {
        if speed == 0 || speed == self.speed {
            return;
        }
        self.speed = speed;
        let [high, low] = u16::try_from((BASE_SPEED / speed).max(1))
            .unwrap_or(u16::MAX)
            .to_be_bytes();
        self.ports.write8(LCR, LCR_8N1 | LCR_DLAB);
        self.ports.write8(DATA, low);
        self.ports.write8(IER, high);
        self.ports.write8(LCR, LCR_8N1);
        self.ports.write8(IER, self.ier);
    }

    fn status(&self) -> u8 {
        self.ports.read8(LSR)
    }

    /// Empties the receive buffer into `buf`. `certain` bytes are known to be there and need no
    /// look at the status.
    fn receive(&self, buf: &mut [u8], certain: usize) -> usize {
        let mut n = 0;
        while n < buf.len() && (n < certain || self.status() & LSR_DR != 0) {
            buf[n] = self.ports.read8(DATA);
            n += 1;
        }
        n
    }

    /// Sends what the transmitter takes without waiting. Stops early, after a burst, if received
    /// bytes wait: true then.
    fn transmit(&self, bytes: &[u8]) -> (usize, bool) {
        let mut sent = 0;
        for burst in bytes.chunks(FIFO_SIZE) {
            let status = self.status();
            if status & LSR_THRE == 0 {
                break;
            }
            burst.iter().for_each(|&byte| self.ports.write8(DATA, byte));
            sent += burst.len();
            if status & LSR_DR != 0 && self.ier & IER_RDI != 0 {
                return (sent, true);
            }
        }
        (sent, false)
    }
}

/// A serial port, as its terminal sees it.
struct Uart {
    chip: Mutex<Chip>,
    event: &'static Event,
    /// Notified when the transmitter is free.
    transmit_ready: PollQueue,
}

impl Uart {
    /// Whether the transmitter is free; if not, it interrupts when it is.
    fn transmitter_free(&self, mask: u8) -> bool {
        let mut chip = self.chip.lock();
        if chip.status() & mask == mask {
            return true;
        }
        let ier = chip.ier | IER_THRI;
        chip.set_interrupts(ier);
        false
    }

    /// Main function of the port's thread.
    fn run(&self, tty: &Tty) -> ! {
        let mut buf = [0; 256];
        // Received bytes that the terminal had no room for: buf[held.start..held.end].
        let mut held = 0..0;
        loop {
            if !held.is_empty() {
                held.start += tty.receive(&buf[held.clone()]);
            }
            let full = !held.is_empty();
            let mut chip = self.chip.lock();
            // While there is no room the chip does not interrupt for received bytes: the line must
            // fall for the next interrupt of the transmitter to be seen, as it is the edge that
            // counts.
            let receive = if full { 0 } else { IER_RDI | IER_RLSI };
            let ier = chip.ier & IER_THRI | receive;
            if ier != chip.ier {
                chip.set_interrupts(ier);
            }
            let cause = chip.ports.read8(IIR);
            if cause & IIR_NO_INT != 0 {
                drop(chip);
                self.event.wait();
                continue;
            }
            match cause & IIR_ID {
                reason @ (IIR_RDI | IIR_RX_TIMEOUT) => {
                    let certain = if reason == IIR_RDI { FIFO_TRIGGER } else { 1 };
                    held = 0..chip.receive(&mut buf, certain);
                }
                IIR_THRI => {
                    let ier = chip.ier & !IER_THRI;
                    chip.set_interrupts(ier);
                    drop(chip);
                    self.transmit_ready.notify();
                }
                IIR_RLSI => {
                    let _ = chip.status();
                }
                _ => {
                    let _ = chip.ports.read8(MSR);
                }
            }
        }
    }
}

impl TtyDriver for Uart {
    fn write(&self, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while sent < bytes.len() {
            let burst = (bytes.len() - sent).min(TRANSMIT_BURST);
            let (n, received) = self.chip.lock().transmit(&bytes[sent..][..burst]);
            sent += n;
            if received {
                // The port's thread was woken, and may be waiting for this CPU. (QEMU repeats its
                // interrupt at every access to a register until the bytes are fetched.)
                task::yield_now();
            } else if n < burst {
                break;
            }
        }
        sent
    }

    fn wait_writable(&self) -> Result<()> {
        self.transmit_ready
            .wait(|| self.transmitter_free(LSR_THRE).then_some(()))
    }

    fn writable(&self, table: Option<&mut PollTable>) -> bool {
        if let Some(table) = table {
            table.poll_wait(&self.transmit_ready);
        }
        self.transmitter_free(LSR_THRE)
    }

    fn drain(&self) -> Result<()> {
        // The last byte leaves after the buffer is empty, and no interrupt tells: that wait is
        // bounded by one byte's time.
        self.wait_writable()?;
        while self.chip.lock().status() & LSR_TEMT == 0 {
            task::sleep_until(task::Deadline::after_ns(1_000_000));
        }
        Ok(())
    }

    fn resume(&self) {
        self.event.set();
    }

    fn configure(&self, termios: &Termios) {
        self.chip.lock().set_speed(termios.speed());
    }
}

/// The claimed interrupt lines, kept for as long as the machine runs.
static LINES: Once<[Option<IsaIrq>; 2]> = Once::new();

/// Finds the serial ports the instance owns and registers each as `/dev/ttyS<n>`. Returns the
/// terminals with their numbers. Called once, at start-up.
pub fn init() -> alloc::vec::Vec<(usize, Arc<Tty>)> {
    let found: alloc::vec::Vec<_> = PORTS
        .iter()
        .enumerate()
        .filter_map(|(index, &(base, _))| {
            let chip = Chip::probe(Ports::claim(base, 8).ok()?)?;
            let uart = Arc::new(Uart {
                chip: Mutex::new(chip),
                event: &EVENTS[index],
                transmit_ready: PollQueue::new(),
            });
            let id = DeviceId::new(4, 64 + index as u32);
            let mut termios = Termios::default();
            termios.set_speed_115200();
            let tty = Tty::new(&format!("ttyS{index}"), id, uart.clone(), termios);
            let served = tty.clone();
            let started = task::spawn(&format!("ttyS{index}"), None, move || uart.run(&served));
            if started.is_err() || tty::register(&tty).is_err() {
                log::error!("ttyS{index}: no memory or name for it");
                return None;
            }
            Some((index, tty))
        })
        .collect();
    let wanted = |line: u8| found.iter().any(|(index, _)| PORTS[*index].1 == line);
    let claim = |line: u8, handler: fn()| {
        if !wanted(line) {
            return None;
        }
        irq::claim_isa(line, handler)
            .inspect_err(|_| log::error!("serial ports: interrupt line {line} is not to be had"))
            .ok()
    };
    LINES.call_once(|| [claim(3, irq3), claim(4, irq4)]);
    // What arrived before the lines were open.
    EVENTS.iter().for_each(Event::set);
    found
}
