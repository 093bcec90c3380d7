//! Two kinds of work that share a machine, for `cargo xtask bench autoscale`.
//!
//! `requests serve SECONDS` answers requests that it makes itself: they come at random moments, at
//! a rate that changes, whether those before have been answered or not. Each second it prints a
//! line, `served TIME LATENCY COUNT`: seconds since 1970, the 99th percentile in milliseconds of
//! the requests that were answered in that second, and how many these were. Latency counts from
//! the moment at which a request was due.
//!
//! `requests batch SECONDS` works with a thread for each processor there may be, and prints
//! `worked TIME COUNT` each second: the pieces that were done.
//!
//! Both do the same work in each system: loops of a fixed number of turns.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime};
use std::{env, mem, thread};

/// Requests in a second, in the parts of the run, which are equally long.
const RATES: [f64; 6] = [15.0, 40.0, 80.0, 30.0, 100.0, 15.0];
/// Turns of the loop that answers a request.
const REQUEST_TURNS: u64 = 1_000_000;
/// Turns of the loop of a piece of batch work.
const PIECE_TURNS: u64 = 2_000_000;
/// Bytes that a piece of batch work asks for, fills and gives back.
const PIECE_BYTES: usize = 4 << 20;
/// Threads of each kind of work: as many as it may get processors.
const THREADS: usize = 4;
/// Time between two lines.
const INTERVAL: Duration = Duration::from_secs(1);

/// Random numbers between 0 and 1 (splitmix64), the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ word >> 31) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Requests that were not answered yet, by the moments at which they were due, and latencies of
/// those that were answered in this second.
#[derive(Default)]
struct Server {
    waiting: Mutex<VecDeque<Instant>>,
    arrived: Condvar,
    latencies: Mutex<Vec<Duration>>,
}

fn work(turns: u64) {
    let mut word = black_box(turns | 1);
    for _ in 0..turns {
        word ^= word << 13;
        word ^= word >> 7;
    }
    black_box(word);
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// Calls `f` at the end of each second of a run.
fn each_second(seconds: u64, mut f: impl FnMut()) {
    let begin = Instant::now();
    for n in 1..=seconds {
        let end = begin + INTERVAL * u32::try_from(n).expect("a run ends");
        thread::sleep(end.saturating_duration_since(Instant::now()));
        f();
    }
}

impl Server {
    /// Has requests come for so long.
    fn make_requests(&self, seconds: u64) {
        let mut random = Random(1);
        let begin = Instant::now();
        let part = seconds as f64 / RATES.len() as f64;
        let mut due = 0.0;
        while let Some(rate) = RATES.get((due / part) as usize) {
            due -= (1.0 - random.next()).ln() / rate;
            let moment = begin + Duration::from_secs_f64(due);
            thread::sleep(moment.saturating_duration_since(Instant::now()));
            self.waiting.lock().expect("a lock").push_back(moment);
            self.arrived.notify_one();
        }
    }

    /// Answers requests, for ever.
    fn answer(&self) {
        loop {
            let waiting = self.waiting.lock().expect("a lock");
            let mut waiting = self
                .arrived
                .wait_while(waiting, |waiting| waiting.is_empty())
                .expect("a lock");
            let due = waiting.pop_front();
            drop(waiting);
            work(REQUEST_TURNS);
            let latency = due.map_or(Duration::ZERO, |due| due.elapsed());
            self.latencies.lock().expect("a lock").push(latency);
        }
    }

    /// Prints what was answered in the last second.
    fn tell(&self) {
        let mut answered = mem::take(&mut *self.latencies.lock().expect("a lock"));
        answered.sort_unstable();
        let rank = (answered.len() * 99).div_ceil(100).max(1);
        let latency = answered.get(rank - 1).copied().unwrap_or_default();
        let milliseconds = latency.as_secs_f64() * 1e3;
        println!("served {:.3} {milliseconds:.3} {}", now(), answered.len());
    }
}

fn serve(seconds: u64) {
    let server = Arc::new(Server::default());
    for _ in 0..THREADS {
        let server = server.clone();
        thread::spawn(move || server.answer());
    }
    let source = server.clone();
    thread::spawn(move || source.make_requests(seconds));
    each_second(seconds, || server.tell());
}

fn batch(seconds: u64) {
    let done = Arc::new(AtomicU64::new(0));
    for _ in 0..THREADS {
        let done = done.clone();
        thread::spawn(move || {
            loop {
                black_box(vec![1u8; PIECE_BYTES]);
                work(PIECE_TURNS);
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let mut before = 0;
    each_second(seconds, || {
        let sum = done.load(Ordering::Relaxed);
        println!(
            "worked {:.3} {}",
            now(),
            sum - mem::replace(&mut before, sum)
        );
    });
}

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["serve", seconds] => serve(seconds.parse().expect("SECONDS is a number")),
        ["batch", seconds] => batch(seconds.parse().expect("SECONDS is a number")),
        _ => panic!("usage: requests serve|batch SECONDS"),
    }
}
