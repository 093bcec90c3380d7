//! The time that frames take from one end of a wire to the other.

use std::collections::VecDeque;
use std::time::Duration;

use clap::Args;

/// Frames that are on the way at most, in one direction; who sends more waits.
const MOST: usize = 4096;
/// Bytes of Ethernet's header, which do not count for the MTU.
const HEADER: usize = 14;
/// The shortest wait for a frame: shorter ones are rounded up.
const SHORTEST: Duration = Duration::from_micros(50);

/// How long frames take, and which pass.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Shape {
    /// Have each frame take so many milliseconds
    #[arg(long, default_value_t = 0, value_name = "MS")]
    pub delay: u64,
    /// Carry so many thousand bits a second in each direction
    #[arg(long, value_name = "KBIT")]
    pub rate: Option<u64>,
    /// Lose frames with packets longer than so many bytes, without a word
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<usize>,
}

/// One direction of a wire. Times are since it was made.
pub struct Road {
    shape: Shape,
    /// When the frame before has left the sender's end.
    free: Duration,
    /// Frames with their arrivals, in order.
    frames: VecDeque<(Duration, Vec<u8>)>,
}

impl Road {
    pub fn new(shape: Shape) -> Self {
        Self {
            shape,
            free: Duration::ZERO,
            frames: VecDeque::new(),
        }
    }

    /// Whether a frame is not too long.
    pub fn carries(&self, frame: &[u8]) -> bool {
        let packet = frame.len().saturating_sub(HEADER);
        self.shape.mtu.is_none_or(|mtu| packet <= mtu)
    }

    /// A frame sets out.
    pub fn put(&mut self, now: Duration, frame: Vec<u8>) {
        let bits = 8 * frame.len() as u64;
        let takes = self.shape.rate.map_or(Duration::ZERO, |kbit| {
            Duration::from_nanos(bits * 1_000_000 / kbit.max(1))
        });
        self.free = self.free.max(now) + takes;
        let arrives = self.free + Duration::from_millis(self.shape.delay);
        self.frames.push_back((arrives, frame));
    }

    /// The next frame that has arrived.
    pub fn take(&mut self, now: Duration) -> Option<Vec<u8>> {
        let first = self.frames.pop_front_if(|(arrives, _)| *arrives <= now);
        first.map(|(_, frame)| frame)
    }

    /// The time until the next one arrives; for ever without one.
    pub fn wait(&self, now: Duration) -> Duration {
        let first = self.frames.front();
        first.map_or(Duration::MAX, |(arrives, _)| {
            arrives.saturating_sub(now).max(SHORTEST)
        })
    }

    /// Whether there is no room for more.
    pub fn is_full(&self) -> bool {
        self.frames.len() >= MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn milliseconds(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn frames_take_their_length_and_the_delay() {
        let mut road = Road::new(Shape {
            delay: 5,
            rate: Some(8),
            mtu: None,
        });
        // A byte takes a millisecond, and the second frame goes when the first one has.
        road.put(milliseconds(100), vec![1; 10]);
        road.put(milliseconds(101), vec![2; 20]);
        assert_eq!(road.take(milliseconds(114)), None);
        assert_eq!(road.wait(milliseconds(114)), milliseconds(1));
        assert_eq!(road.take(milliseconds(115)), Some(vec![1; 10]));
        assert_eq!(road.take(milliseconds(134)), None);
        assert_eq!(road.take(milliseconds(135)), Some(vec![2; 20]));
        // After a pause the road is free.
        road.put(milliseconds(500), vec![3]);
        assert_eq!(road.wait(milliseconds(500)), milliseconds(6));
    }

    #[test]
    fn a_road_without_a_shape_takes_no_time_and_one_has_room_for_so_many() {
        let mut road = Road::new(Shape::default());
        for n in 0..MOST {
            assert!(!road.is_full());
            road.put(milliseconds(1), vec![n as u8; 70_000 % (n + 1)]);
        }
        assert!(road.is_full());
        for n in 0..MOST {
            assert_eq!(road.take(milliseconds(1)).unwrap().len(), 70_000 % (n + 1));
        }
        assert_eq!(road.wait(milliseconds(1)), Duration::MAX);
    }

    #[test]
    fn packets_that_are_too_long_do_not_pass() {
        let road = Road::new(Shape {
            mtu: Some(1280),
            ..Shape::default()
        });
        assert!(road.carries(&[0; 1294]) && !road.carries(&[0; 1295]));
        assert!(Road::new(Shape::default()).carries(&[0; 65_000]));
    }
}
