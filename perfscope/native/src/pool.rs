//! Texts numbered in order of their first occurrence.

use std::collections::hash_map::RandomState;
use std::collections::TryReserveError;
use std::hash::{BuildHasher, Hasher};

const EMPTY: u32 = u32::MAX;

struct Entry {
    hash: u64,
    start: usize,
    length: usize,
}

/// A dictionary from texts to codes 0, 1, 2 and so on.
pub struct Pool {
    seed: u64,
    factor: u64,
    entries: Vec<Entry>,
    slots: Vec<u32>,
    texts: Vec<u8>,
}

impl Default for Pool {
    fn default() -> Self {
        // Keys that a file cannot know, so that it cannot be made of texts with equal hashes.
        let random = || RandomState::new().build_hasher().finish();
        Pool { seed: random(), factor: random() | 1, entries: Vec::new(), slots: Vec::new(), texts: Vec::new() }
    }
}

impl Pool {
    /// Return the code of `text`, a new one if it has none.
    #[inline(always)]
    pub fn code(&mut self, text: &[u8]) -> Result<i32, TryReserveError> {
        if self.entries.len() * 2 >= self.slots.len() {
            self.grow()?;
        }
        let hash = self.hash(text);
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let code = self.slots[slot];
            if code == EMPTY {
                break;
            }
            let entry = &self.entries[code as usize];
            if entry.hash == hash && &self.texts[entry.start..entry.start + entry.length] == text {
                return Ok(code as i32);
            }
            slot = (slot + 1) & mask;
        }
        self.entries.try_reserve(1)?;
        self.texts.try_reserve(text.len())?;
        let code = self.entries.len();
        self.entries.push(Entry { hash, start: self.texts.len(), length: text.len() });
        self.texts.extend_from_slice(text);
        self.slots[slot] = code as u32;
        Ok(code as i32)
    }

    #[inline(always)]
    fn hash(&self, text: &[u8]) -> u64 {
        let mut state = self.seed ^ text.len() as u64;
        let mut chunks = text.chunks_exact(8);
        for chunk in &mut chunks {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            state = self.mix(state, u64::from_le_bytes(word));
        }
        let rest = chunks.remainder();
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            state = self.mix(state, u64::from_le_bytes(word));
        }
        state
    }

    /// Multiply to 128 bits and fold both halves.
    #[inline(always)]
    fn mix(&self, state: u64, word: u64) -> u64 {
        let product = (state ^ word) as u128 * self.factor as u128;
        product as u64 ^ (product >> 64) as u64
    }

    fn grow(&mut self) -> Result<(), TryReserveError> {
        let size = (self.slots.len() * 2).max(4096);
        let mut slots = Vec::new();
        slots.try_reserve_exact(size)?;
        slots.resize(size, EMPTY);
        for (code, entry) in self.entries.iter().enumerate() {
            let mut slot = entry.hash as usize & (size - 1);
            while slots[slot] != EMPTY {
                slot = (slot + 1) & (size - 1);
            }
            slots[slot] = code as u32;
        }
        self.slots = slots;
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// All texts, one after the other.
    pub fn texts(&self) -> &[u8] {
        &self.texts
    }

    /// The position after each text in `texts`.
    pub fn ends(&self) -> impl Iterator<Item = i64> + '_ {
        self.entries.iter().map(|entry| (entry.start + entry.length) as i64)
    }
}
