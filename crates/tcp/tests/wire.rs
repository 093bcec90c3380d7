//! The engine against itself over a wire that loses, repeats, reorders, corrupts and shortens.

mod common;

use common::{LONG, Plan, Wire, WireConfig};
use proptest::prelude::*;
use tcp::{Algorithm, Config, MILLISECOND, SECOND};

/// Patient enough for a wire that loses a third.
fn patient() -> Config {
    Config {
        syn_retries: 60,
        syn_ack_retries: 60,
        retries2: 60,
        mtu_probing: true,
        ..Config::default()
    }
}

fn configs() -> impl Strategy<Value = Config> {
    (
        any::<[bool; 5]>(),
        prop_oneof![Just(None), (0_u8..=14).prop_map(Some)],
        300_u16..1460,
        any::<bool>(),
        2000_usize..200_000,
        prop_oneof![Just(0_usize), 500_usize..65_536],
    )
        .prop_map(|(flags, window_scale, mss, reno, out_of_order, offload)| {
            let [timestamps, sack, ecn, no_delay, cork] = flags;
            Config {
                timestamps,
                sack,
                ecn,
                no_delay,
                cork: cork && !no_delay,
                window_scale,
                mss,
                out_of_order,
                offload,
                algorithm: if reno {
                    Algorithm::Reno
                } else {
                    Algorithm::Cubic
                },
                ..patient()
            }
        })
}

fn plans() -> impl Strategy<Value = Plan> {
    (
        prop_oneof![Just(0_u64), 1_u64..3000, 1000_u64..150_000],
        1_u64..70_000,
        500_u64..200_000,
        1_u64..100_000,
        1_u64..60,
        any::<bool>(),
    )
        .prop_map(|(send, burst, room, read, every, close_last)| Plan {
            send,
            burst: burst.max(send / 200),
            room,
            read: read.max(room / 20),
            read_every: every * MILLISECOND,
            close_last,
        })
}

fn wires() -> impl Strategy<Value = WireConfig> {
    (
        any::<u64>(),
        (0_u64..=30, 0_u64..=10, 0_u64..=30, 0_u64..=5, 0_u64..=10),
        (1_u64..100, 0_u64..2000, 3000_u64..200_000),
        (200_usize..1500, 200_usize..1500, 0_u64..3000, any::<bool>()),
    )
        .prop_map(|(seed, chances, (delay, byte_time, queue), path)| {
            let (loss, duplication, reordering, corruption, marking) = chances;
            let (largest, later, change, black_hole) = path;
            WireConfig {
                seed,
                loss,
                duplication,
                reordering,
                corruption,
                marking,
                delay: delay * MILLISECOND,
                byte_time,
                queue,
                largest,
                change: Some((change * MILLISECOND, later)),
                black_hole,
            }
        })
}

/// Runs two connected engines until both have closed, and expects all bytes once and in order.
fn run_to_the_end(wire: WireConfig, configs: [Config; 2], [plan, other]: [Plan; 2], both: bool) {
    // One of two has to close first.
    let other = Plan {
        close_last: other.close_last && !plan.close_last,
        ..other
    };
    let mut wire = Wire::new(wire, configs, [plan, other], both);
    wire.run(LONG);
    wire.expect_whole();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whatever the wire does, every byte comes once and in order, both ends close, no timer stays.
    #[test]
    fn every_byte_comes_once(
        config in wires(),
        first in configs(),
        second in configs(),
        plan in plans(),
        other in plans(),
        both in any::<bool>(),
    ) {
        run_to_the_end(config, [first, second], [plan, other], both);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(20_000)
    })]

    /// Checks on 20,000 wires that every byte comes once (`cargo test -p tcp --test wire --
    /// --ignored`).
    #[test]
    #[ignore = "takes minutes"]
    fn every_byte_comes_once_twenty_thousand_times(
        config in wires(),
        first in configs(),
        second in configs(),
        plan in plans(),
        other in plans(),
        both in any::<bool>(),
    ) {
        run_to_the_end(config, [first, second], [plan, other], both);
    }
}

fn one_way(bytes: u64) -> [Plan; 2] {
    let big = Plan {
        room: 4 << 20,
        ..Plan::default()
    };
    [
        Plan {
            send: bytes,
            burst: 4 << 20,
            ..big.clone()
        },
        big,
    ]
}

fn connection_info(wire: &Wire) -> tcp::Info {
    wire.ends[0].connection.as_ref().unwrap().info()
}

/// On a clean wire nothing is sent again.
#[test]
fn a_clean_wire_sees_no_retransmission() {
    for (timestamps, sack) in [(true, true), (false, true), (true, false), (false, false)] {
        let config = Config {
            timestamps,
            sack,
            ..Config::default()
        };
        let wire = WireConfig {
            queue: u64::MAX / 1000,
            ..WireConfig::default()
        };
        let mut wire = Wire::new(wire, [config.clone(), config], one_way(5 << 20), false);
        wire.run(LONG);
        wire.expect_whole();
        for end in &wire.ends {
            let info = end.connection.as_ref().unwrap().info();
            assert_eq!(info.retransmissions, 0, "{timestamps} {sack}: {info:?}");
        }
    }
}

/// A wire with a queue of a bandwidth-delay product is used well, by either algorithm.
#[test]
fn the_wire_is_used() {
    for algorithm in [Algorithm::Cubic, Algorithm::Reno] {
        let config = Config {
            algorithm,
            ..Config::default()
        };
        // 12.5 MB/s, 20 ms there and back.
        let wire = WireConfig {
            queue: 250_000,
            ..WireConfig::default()
        };
        let bytes = 8 << 20;
        let mut wire = Wire::new(wire, [config.clone(), config], one_way(bytes), false);
        wire.run(LONG);
        wire.expect_whole();
        // TIME-WAIT is not transfer.
        let taken = wire.now - 60 * SECOND;
        let least = bytes * 80;
        assert!(taken < least * 3 / 2, "{algorithm:?}: {taken} of {least}");
    }
}

/// RFC 8985 and 6937: one loss in a hundred costs neither time-outs nor much time; without
/// selective acknowledgements RFC 6582 repairs as well, more slowly.
#[test]
fn few_losses_cost_little() {
    for sack in [true, false] {
        let config = Config {
            sack,
            algorithm: Algorithm::Reno,
            ..Config::default()
        };
        let wire = WireConfig {
            loss: 1,
            delay: MILLISECOND,
            ..WireConfig::default()
        };
        let mut wire = Wire::new(wire, [config.clone(), config], one_way(5 << 20), false);
        wire.run(LONG);
        wire.expect_whole();
        let info = connection_info(&wire);
        let taken = wire.now - 60 * SECOND;
        assert!(taken < 6 * SECOND, "{sack}: {taken}");
        if sack {
            let again = info.retransmissions;
            assert!(
                again <= wire.dropped + wire.dropped / 5 + 3,
                "{again} of {}",
                wire.dropped
            );
        }
    }
}
