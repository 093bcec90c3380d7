//! The kernel image: start-up by role, wiring of the crates, nothing else.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

guard::entry!(kernel_main, kernel_secondary);

fn kernel_main() -> ! {
    task::init();
    log::info!("hello {} {:?}", guard::cpu::count(), guard::mem::stats());

    task::spawn("main", None, main_thread).expect("memory for the first thread");
    task::start_cpu()
}

fn kernel_secondary() -> ! {
    task::start_cpu()
}

fn main_thread() {
    guard::boot::start_further_cpus();
    log::info!("up at {} us, cpus {}", guard::timer::now_ns() / 1000, guard::cpu::count());
    if !guard::role::is_supervisor() {
        for i in 0..3 {
            task::sleep_until(task::now_ns() + 10_000_000);
            log::info!("tick {i} {}", guard::timer::now_ns() / 1000);
        }
        match guard::role::cmdline() {
            "panic" => panic!("on purpose"),
            "hang" => guard::faults::inject(guard::faults::Fault::Hang),
            "wild" => guard::faults::inject(guard::faults::Fault::Wild),
            _ => guard::power::off(),
        }
    }
    for round in 0..8 {
        use guard::partition::*;
        let cmd = ["x", "panic", "hang", "wild"][round % 4];
        let t0 = guard::timer::now_ns();
        let mut p = Partition::create(&Spec { id: 1, cpus: 1 + (round % 2) as u32, memory: 8 << 20, label: "a", cmdline: cmd }).expect("create");
        let t1 = guard::timer::now_ns();
        p.start().expect("start");
        let t2 = guard::timer::now_ns();
        for _ in 0..100 {
            task::sleep_until(task::now_ns() + 1_000_000);
            p.admit_further_cpus();
            if p.says_it_ended() { break; }
        }
        let t3 = guard::timer::now_ns();
        let report = loop {
            match p.halt_step() {
                HaltProgress::Pending => task::sleep_until(task::now_ns() + 100_000),
                HaltProgress::Done(r) => break r,
            }
        };
        let mut log = ring_read(p.window());
        for line in log.drain(..) { log::info!("  | {line}"); }
        let t4 = guard::timer::now_ns();
        let r = p.reclaim();
        drop(p);
        log::info!("{cmd}: create {} start {} ran {} halt {} us {report:?} {r:?} {:?}", (t1-t0)/1000, (t2-t1)/1000, (t3-t2)/1000, (t4-t3)/1000, guard::partition::resources());
    }
    guard::power::off()
}

extern crate alloc;
fn ring_read(w: &abi::Window) -> alloc::vec::Vec<alloc::string::String> {
    let mut r = ring::LogReader::new(&w.klog, &w.klog_area);
    let mut b = [0u8; 4096];
    let (n, _) = r.read(&mut b);
    alloc::string::String::from_utf8_lossy(&b[..n]).lines().map(|l| l.into()).collect()
}
