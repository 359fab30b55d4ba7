//! Random draws of commands from the table.

use std::collections::HashMap;

use anyhow::{bail, Context, Result};
use rand::distr::weighted::WeightedIndex;
use rand::distr::Distribution;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::RngExt;

use crate::commands::{Kind, RULES, VERBATIM};
use crate::left_out::LeftOut;

/// The words of one command.
pub type Command = Vec<Vec<u8>>;

/// Values that only the run knows.
pub trait Surroundings {
    /// Returns the id of some client.
    fn client(&self, rng: &mut StdRng) -> u64;
    /// Returns a reply of DUMP, or a payload close to one.
    fn payload(&self, rng: &mut StdRng) -> Vec<u8>;
    /// Returns a fence that is a little ahead of the clock.
    fn fence(&self) -> u64;
    /// Returns the cluster name of the node that gets the commands.
    fn own_node(&self) -> &str;
    /// Returns the cluster name of the other node with slots.
    fn other_node(&self) -> &str;
    /// Returns the port of the other node with slots.
    fn other_port(&self) -> u16;
}

/// The parsed table.
pub struct Grammar {
    rules: Vec<Rule>,
    any: usize,
    junk: usize,
    not_in_multi: Vec<&'static str>,
}

struct Rule {
    choices: Vec<Choice>,
    weights: WeightedIndex<u32>,
}

struct Choice {
    name: &'static str,
    steps: Vec<Step>,
}

/// A piece of a template.
#[derive(Debug, PartialEq)]
enum Step {
    /// One word, joined from its parts.
    Word(Vec<Part>),
    /// All words of a rule.
    Splice(usize),
    /// The end of a command. Another command follows.
    Next,
}

#[derive(Debug, PartialEq)]
enum Part {
    Text(&'static str),
    Rule(usize),
    Number(u64, u64),
    Blank(Blank),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Blank {
    Client,
    Payload,
    Fence,
    OwnNode,
    OtherNode,
    OtherPort,
}

/// The draws of one connection.
pub struct Draw<'a, S> {
    /// The table to draw from.
    pub grammar: &'a Grammar,
    /// The connection's own random numbers.
    pub rng: &'a mut StdRng,
    /// The values that only the run knows.
    pub surroundings: &'a S,
    /// True if a MULTI may be open.
    pub in_multi: &'a mut bool,
}

impl Grammar {
    /// Parses the table, without the kinds that are left out.
    pub fn new(kinds: &[Kind], left_out: &LeftOut) -> Result<Grammar> {
        let names: HashMap<&str, usize> = RULES
            .iter()
            .map(|(name, _)| *name)
            .chain(VERBATIM.iter().map(|(name, _)| *name))
            .chain(["any"])
            .enumerate()
            .map(|(number, name)| (name, number))
            .collect();
        let mut rules = Vec::new();
        for (name, choices) in RULES {
            let choices = choices.iter().map(|(weight, text)| (*weight, "", *text));
            rules.push(Rule::new(choices, &names).with_context(|| format!("rule {name}"))?);
        }
        for (_, words) in VERBATIM {
            rules.push(Rule::verbatim(words)?);
        }
        let kept = kinds
            .iter()
            .filter(|kind| !left_out.everywhere.contains(&kind.name))
            .map(|kind| (kind.weight, kind.name, kind.template));
        rules.push(Rule::new(kept, &names)?);
        Ok(Grammar {
            rules,
            any: names["any"],
            junk: names["junk"],
            not_in_multi: left_out.in_multi.clone(),
        })
    }
}

impl Rule {
    fn new(
        choices: impl Iterator<Item = (u32, &'static str, &'static str)>,
        names: &HashMap<&str, usize>,
    ) -> Result<Rule> {
        let mut weights = Vec::new();
        let mut parsed = Vec::new();
        for (weight, name, text) in choices {
            weights.push(weight);
            let steps = steps(text, names).with_context(|| format!("template {text:?}"))?;
            parsed.push(Choice { name, steps });
        }
        Ok(Rule {
            choices: parsed,
            weights: WeightedIndex::new(weights)?,
        })
    }

    fn verbatim(words: &[&'static str]) -> Result<Rule> {
        let choice = |word: &&'static str| Choice {
            name: "",
            steps: vec![Step::Word(vec![Part::Text(word)])],
        };
        Ok(Rule {
            choices: words.iter().map(choice).collect(),
            weights: WeightedIndex::new(words.iter().map(|_| 1))?,
        })
    }
}

fn steps(template: &'static str, names: &HashMap<&str, usize>) -> Result<Vec<Step>> {
    template
        .split_whitespace()
        .map(|word| step(word, names))
        .collect()
}

fn step(word: &'static str, names: &HashMap<&str, usize>) -> Result<Step> {
    if word == ";" {
        return Ok(Step::Next);
    }
    let mut parts = parts(word, names)?;
    match parts.as_slice() {
        [Part::Rule(rule)] => Ok(Step::Splice(*rule)),
        // Two quotes are an empty word.
        [Part::Text("\"\"")] => {
            parts.clear();
            Ok(Step::Word(parts))
        }
        _ => Ok(Step::Word(parts)),
    }
}

fn parts(word: &'static str, names: &HashMap<&str, usize>) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    let mut rest = word;
    while let Some((text, behind)) = rest.split_once('<') {
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        let (name, behind) = behind.split_once('>').context("a < without its >")?;
        parts.push(part(name, names)?);
        rest = behind;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest));
    }
    Ok(parts)
}

fn part(name: &str, names: &HashMap<&str, usize>) -> Result<Part> {
    if let Some(rule) = names.get(name) {
        return Ok(Part::Rule(*rule));
    }
    if let Some((from, to)) = name.split_once('-') {
        if let (Ok(from), Ok(to)) = (from.parse(), to.parse()) {
            return Ok(Part::Number(from, to));
        }
    }
    Ok(Part::Blank(match name {
        "client" => Blank::Client,
        "payload" => Blank::Payload,
        "fence" => Blank::Fence,
        "own-node" => Blank::OwnNode,
        "other-node" => Blank::OtherNode,
        "other-port" => Blank::OtherPort,
        _ => bail!("no rule <{name}>"),
    }))
}

impl<S: Surroundings> Draw<'_, S> {
    /// Returns the connection's next command, or a few commands that belong together.
    pub fn commands(&mut self) -> Vec<Command> {
        let mut commands = vec![Command::new()];
        self.expand(self.grammar.any, &mut commands);
        self.ended(&commands);
        for command in &mut commands {
            if breakable(command) && self.rng.random_ratio(1, 30) {
                self.break_up(command);
            }
        }
        commands
    }

    fn expand(&mut self, rule: usize, commands: &mut Vec<Command>) {
        let grammar = self.grammar;
        let choice = self.choose(&grammar.rules[rule]);
        for step in &choice.steps {
            match step {
                Step::Next => {
                    self.ended(commands);
                    commands.push(Command::new());
                }
                Step::Splice(rule) => self.expand(*rule, commands),
                Step::Word(parts) => {
                    let word = self.word(parts);
                    if let Some(command) = commands.last_mut() {
                        command.push(word);
                    }
                }
            }
        }
    }

    fn choose<'r>(&mut self, rule: &'r Rule) -> &'r Choice {
        loop {
            let choice = &rule.choices[rule.weights.sample(self.rng)];
            let barred = *self.in_multi && self.grammar.not_in_multi.contains(&choice.name);
            if !barred {
                return choice;
            }
        }
    }

    fn word(&mut self, parts: &[Part]) -> Vec<u8> {
        let mut word = Vec::new();
        for part in parts {
            match part {
                Part::Text(text) => word.extend(text.as_bytes()),
                Part::Number(from, to) => {
                    let number = self.rng.random_range(*from..=*to);
                    word.extend(number.to_string().as_bytes());
                }
                Part::Rule(rule) => {
                    let mut commands = vec![Command::new()];
                    self.expand(*rule, &mut commands);
                    word.extend(commands.into_iter().flatten().flatten());
                }
                Part::Blank(blank) => word.extend(self.fill(*blank)),
            }
        }
        word
    }

    fn fill(&mut self, blank: Blank) -> Vec<u8> {
        let known = self.surroundings;
        match blank {
            Blank::Client => known.client(self.rng).to_string().into(),
            Blank::Payload => known.payload(self.rng),
            Blank::Fence => known.fence().to_string().into(),
            Blank::OwnNode => known.own_node().into(),
            Blank::OtherNode => known.other_node().into(),
            Blank::OtherPort => known.other_port().to_string().into(),
        }
    }

    /// Updates `in_multi` after the last of these commands, which is complete.
    fn ended(&mut self, commands: &[Command]) {
        let name = commands.last().and_then(|command| command.first());
        match name.map(Vec::as_slice) {
            Some(b"MULTI") => *self.in_multi = true,
            Some(b"EXEC" | b"DISCARD" | b"RESET") => *self.in_multi = false,
            _ => {}
        }
    }

    /// Changes a command at random, so that it is wrong or another command.
    fn break_up(&mut self, command: &mut Command) {
        let place = self.rng.random_range(1..command.len());
        match self.rng.random_range(0..5) {
            0 => drop(command.remove(place)),
            1 => command.insert(place, command[place].clone()),
            2 => command.swap(place, 1),
            3 => {
                let junk = self.junk();
                command.insert(place, junk);
            }
            _ => command[place] = self.junk(),
        }
    }

    fn junk(&mut self) -> Vec<u8> {
        let junk = &self.grammar.rules[self.grammar.junk].choices;
        let steps = junk.choose(self.rng).map(|choice| choice.steps.as_slice());
        match steps {
            Some([Step::Word(parts)]) => self.word(parts),
            _ => Vec::new(),
        }
    }
}

/// Returns true if a changed number in the command can't stop the server for long.
fn breakable(command: &Command) -> bool {
    let name = command.first().map_or(b"".as_slice(), Vec::as_slice);
    command.len() > 1 && (name.starts_with(b"LOCK.") || name == b"RESTORE")
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use crate::commands::{CLUSTER_KINDS, KINDS};

    struct Nothing;

    impl Surroundings for Nothing {
        fn client(&self, _: &mut StdRng) -> u64 {
            7
        }
        fn payload(&self, _: &mut StdRng) -> Vec<u8> {
            b"payload".to_vec()
        }
        fn own_node(&self) -> &str {
            "own"
        }
        fn other_node(&self) -> &str {
            "other"
        }
        fn fence(&self) -> u64 {
            1
        }

        fn other_port(&self) -> u16 {
            1
        }
    }

    fn drawn(kinds: &[Kind], left_out: &LeftOut, seed: u64) -> Vec<Command> {
        let grammar = Grammar::new(kinds, left_out).expect("a sound table");
        let mut draw = Draw {
            grammar: &grammar,
            rng: &mut StdRng::seed_from_u64(seed),
            surroundings: &Nothing,
            in_multi: &mut false,
        };
        (0..2_000).flat_map(|_| draw.commands()).collect()
    }

    #[test]
    fn a_seed_repeats_its_commands() {
        let nothing = LeftOut::default();
        assert_eq!(drawn(KINDS, &nothing, 5), drawn(KINDS, &nothing, 5));
        assert_ne!(drawn(KINDS, &nothing, 5), drawn(KINDS, &nothing, 6));
    }

    #[test]
    fn every_line_of_the_tables_can_be_drawn() {
        for kind in KINDS.iter().chain(CLUSTER_KINDS) {
            let commands = drawn(&[*kind, KINDS[0]], &LeftOut::default(), 1);
            assert!(
                commands.iter().all(|command| !command.is_empty()),
                "{} has an empty command",
                kind.name
            );
        }
    }

    #[test]
    fn what_is_left_out_of_multi_is_drawn_outside_of_it_only() {
        let pause = KINDS.iter().find(|kind| kind.name == "pause-write");
        let multi = KINDS.iter().find(|kind| kind.name == "multi");
        let acquire = KINDS[0];
        let left_out = LeftOut {
            everywhere: Vec::new(),
            in_multi: vec!["pause-write"],
        };
        let kinds = [*pause.unwrap(), *multi.unwrap(), acquire];
        let mut in_multi = false;
        let mut pauses = 0;
        for command in drawn(&kinds, &left_out, 1) {
            match command[0].as_slice() {
                b"MULTI" => in_multi = true,
                b"EXEC" => in_multi = false,
                b"CLIENT" => {
                    assert!(!in_multi);
                    pauses += 1;
                }
                _ => {}
            }
        }
        assert!(pauses > 0);
    }
}
