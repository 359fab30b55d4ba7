//! Files that use what stands above or beside them, and files that stand nowhere.

use std::collections::{BTreeMap, BTreeSet};

use crate::uses::Uses;

/// The floors of a crate.
pub struct Floors<'a> {
    /// Each word of the table, with the place of what it fits.
    places: Vec<(&'a str, Place)>,
}

/// Where a file stands.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    floor: usize,
    side: usize,
}

impl<'a> Floors<'a> {
    /// Reads a table: a line for each floor, the lowest first, in which `|` parts its sides.
    pub fn read(table: &'a str) -> Self {
        let mut places = Vec::new();
        let lines = table.lines().filter(|line| !line.trim().is_empty());
        for (floor, line) in lines.enumerate() {
            for (side, words) in line.split('|').enumerate() {
                let words = words.split_whitespace();
                places.extend(words.map(|word| (word, Place { floor, side })));
            }
        }
        Self { places }
    }

    /// A complaint about each use of what stands above or beside its user, each file that stands
    /// nowhere, and each word of the table that no file needs.
    pub fn complaints(&self, uses: &Uses) -> Vec<String> {
        let stands: BTreeMap<&str, usize> = uses
            .files
            .iter()
            .filter_map(|file| Some((&**file, self.word_for(file)?)))
            .collect();
        let mut complaints = self.idle_words(&stands);
        let nowhere = uses
            .files
            .iter()
            .filter(|file| !stands.contains_key(&***file));
        complaints.extend(nowhere.map(|file| format!("{file} stands on no floor")));
        for (file, used) in uses.lines.keys() {
            let places = (self.place_of(&stands, file), self.place_of(&stands, used));
            if let (Some(own), Some(other)) = places {
                let why = own.refuses(other);
                complaints.extend(why.map(|why| format!("{}, {why}", uses.told(file, used))));
            }
        }
        complaints
    }

    /// Which word of the table fits this file, the longest if there are several.
    fn word_for(&self, file: &str) -> Option<usize> {
        let fits = |word: &str| file == word || word.ends_with('/') && file.starts_with(word);
        let fitting = (0..self.places.len()).filter(|word| fits(self.places[*word].0));
        fitting.max_by_key(|word| self.places[*word].0.len())
    }

    fn place_of(&self, stands: &BTreeMap<&str, usize>, file: &str) -> Option<Place> {
        stands.get(file).map(|word| self.places[*word].1)
    }

    fn idle_words(&self, stands: &BTreeMap<&str, usize>) -> Vec<String> {
        let needed: BTreeSet<usize> = stands.values().copied().collect();
        let idle = (0..self.places.len()).filter(|word| !needed.contains(word));
        idle.map(|word| format!("no file stands at {} of the table", self.places[word].0))
            .collect()
    }
}

impl Place {
    /// Why what stands here may not use what stands there, if it may not.
    fn refuses(self, there: Self) -> Option<&'static str> {
        if there.floor > self.floor {
            return Some("which stands on a higher floor");
        }
        let beside = there.floor == self.floor && there.side != self.side;
        beside.then_some("which stands beside it")
    }
}
