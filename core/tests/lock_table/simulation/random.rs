//! The chance of a simulation: the same numbers for a seed on every machine and in every version.

/// SplitMix64.
pub struct Random(u64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    /// Returns true once in `times`.
    pub const fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    pub fn index(&mut self, len: usize) -> usize {
        (self.draw() % len as u64) as usize
    }
}
