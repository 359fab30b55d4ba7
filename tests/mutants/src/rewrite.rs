//! A source file with all its mutants, each chosen by its number while the tests run.
//!
//! 1. An expression with mutants becomes
//!    `(match crate::mutant::at(7, 2) { 7 => a >= b, 8 => a == b, _ => a < b })`.
//! 2. A function with mutants begins with
//!    `match crate::mutant::at(9, 1) { 9 => return false, _ => {} }`.
//! 3. An arm that a mutant deletes gets a guard.
//! 4. A constant with mutants gets a function beside it, which its uses in expressions call.
//! 5. A mutant stays in a part of the text that has no other mutant, because one is chosen at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use anyhow::{Context, Result};
use proc_macro2::LineColumn;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::listed::{Genre, Mutant, Place, Span};

/// A mutant's number: its index in the list, from 1 on. 0 is the program as it is.
pub type Number = usize;

/// The mutants of a file that are built in.
pub struct Rewritten {
    pub text: String,
    /// The bytes of the new text that belong to each mutant.
    pub mutants: Vec<(Range<usize>, Number)>,
    /// The bytes of the new text in which each group of mutants is.
    pub sites: Vec<(Range<usize>, Vec<Number>)>,
}

/// Text before and after a part of the source.
struct Wrap {
    part: Range<usize>,
    before: Vec<(String, Option<Number>)>,
    after: String,
    numbers: Vec<Number>,
}

/// The end of the name of the function that stands for a constant.
const OR_MUTANT: &str = "_or_mutant";

/// Returns the names of the constants of a file that have mutants.
pub fn constants(text: &str, mutants: &[(Number, &Mutant)]) -> Result<BTreeSet<String>> {
    let file = syn::parse_file(text)?;
    let (mutated, _) = own_constants(&file, mutants);
    Ok(mutated)
}

/// Returns the names of the constants of a file: those with mutants, and the others.
fn own_constants(
    file: &syn::File,
    mutants: &[(Number, &Mutant)],
) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut mutated, mut others) = (BTreeSet::new(), BTreeSet::new());
    for item in &file.items {
        if let syn::Item::Const(item) = item {
            let whole = span_of(&item.expr);
            let is_mutated = mutants
                .iter()
                .any(|(_, mutant)| whole.contains(mutant.span));
            let names = if is_mutated {
                &mut mutated
            } else {
                &mut others
            };
            names.insert(item.ident.to_string());
        }
    }
    (mutated, others)
}

/// Puts mutants into the text of a file. `constants` are those of all files that have mutants.
pub fn rewrite(
    text: &str,
    mutants: &[(Number, &Mutant)],
    constants: &BTreeSet<String>,
) -> Result<Rewritten> {
    let file = syn::parse_file(text)?;
    let lines = Lines::of(text);
    let (_, others) = own_constants(&file, mutants);
    let constants = constants - &others;
    let mut finder = Finder {
        lines: &lines,
        text,
        by_span: group(mutants),
        constants: &constants,
        wraps: Vec::new(),
    };
    finder.add_bodies();
    finder.visit_file(&file);
    let mut missing = finder.by_span.values().flatten();
    if let Some((_, mutant)) = missing.next() {
        return Err(anyhow::anyhow!("{}", mutant.name)).context("no such place");
    }
    let mut wraps = finder.wraps;
    wraps.sort_by_key(|wrap| (wrap.part.start, std::cmp::Reverse(wrap.part.end)));
    Ok(Writer::write(text, &wraps))
}

type Groups<'m> = BTreeMap<(Place, Place), Vec<(Number, &'m Mutant)>>;

fn group<'m>(mutants: &[(Number, &'m Mutant)]) -> Groups<'m> {
    let mut groups = Groups::new();
    for (number, mutant) in mutants {
        let Span { start, end } = mutant.span;
        let group = groups.entry((start, end)).or_default();
        group.push((*number, *mutant));
    }
    groups
}

/// The byte at which each line begins.
struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    fn of(text: &'t str) -> Self {
        let breaks = text.match_indices('\n').map(|(at, _)| at + 1);
        let starts = std::iter::once(0).chain(breaks).collect();
        Self { text, starts }
    }

    fn byte(&self, place: Place) -> usize {
        let start = self.starts[place.line - 1];
        let mut chars = self.text[start..].char_indices();
        let at = chars.nth(place.column - 1).map(|(at, _)| at);
        start + at.unwrap_or(self.text.len() - start)
    }

    fn bytes(&self, span: Span) -> Range<usize> {
        self.byte(span.start)..self.byte(span.end)
    }
}

fn place(at: LineColumn) -> Place {
    Place {
        line: at.line,
        column: at.column + 1,
    }
}

fn span_of(node: &impl Spanned) -> Span {
    let span = node.span();
    Span {
        start: place(span.start()),
        end: place(span.end()),
    }
}

struct Finder<'t, 'm> {
    lines: &'t Lines<'t>,
    text: &'t str,
    by_span: Groups<'m>,
    constants: &'t BTreeSet<String>,
    wraps: Vec<Wrap>,
}

impl<'m> Finder<'_, 'm> {
    /// Takes the mutants with this span and one of these genres.
    fn take(&mut self, span: Span, genres: &[Genre]) -> Vec<(Number, &'m Mutant)> {
        let key = (span.start, span.end);
        let Some(group) = self.by_span.get_mut(&key) else {
            return Vec::new();
        };
        let (taken, left) = group
            .drain(..)
            .partition(|(_, mutant)| genres.contains(&mutant.genre));
        *group = left;
        if group.is_empty() {
            self.by_span.remove(&key);
        }
        taken
    }

    /// Adds the mutants of functions. Their spans are those of the statements.
    fn add_bodies(&mut self) {
        let spans: Vec<_> = self.by_span.keys().copied().collect();
        for (start, end) in spans {
            let span = Span { start, end };
            let mutants = self.take(span, &[Genre::FnValue]);
            let part = self.lines.bytes(span);
            if mutants
                .iter()
                .any(|(_, mutant)| mutant.is_of_unnamed_type())
            {
                self.wrap_unnamed(part, &mutants);
                continue;
            }
            let arms = mutants
                .iter()
                .map(|(number, mutant)| (*number, format!("return {}", mutant.replacement)));
            self.wrap(part, "", arms.collect(), "{} } ", "");
        }
    }

    /// Adds the mutants of a function whose values all have one type. It gets a type of which each
    /// mutant is a variant.
    fn wrap_unnamed(&mut self, part: Range<usize>, mutants: &[(Number, &Mutant)]) {
        const RIGHT: &str = "::either::Either::Right(";
        let arms = mutants.iter().enumerate().map(|(depth, (number, mutant))| {
            let value = &mutant.replacement;
            let (open, close) = (RIGHT.repeat(depth), ")".repeat(depth));
            (
                *number,
                format!("{open}::either::Either::Left({value}){close}"),
            )
        });
        let open = format!("{}{{", RIGHT.repeat(mutants.len()));
        let close = format!("}}{} }}", ")".repeat(mutants.len()));
        self.wrap(part, "", arms.collect(), &open, &close);
    }

    /// Adds mutants that replace a part of an expression.
    fn add(&mut self, whole: Span, part: Span, genres: &[Genre]) {
        let mutants = self.take(part, genres);
        let arms = self.replaced(whole, part, &mutants);
        let whole = self.lines.bytes(whole);
        self.wrap(whole, "(", arms, "", " })");
    }

    fn wrap(
        &mut self,
        part: Range<usize>,
        open: &str,
        arms: Vec<(Number, String)>,
        otherwise: &str,
        after: &str,
    ) {
        let numbers: Vec<Number> = arms.iter().map(|(number, _)| *number).collect();
        let Some(first) = numbers.first() else {
            return;
        };
        let count = numbers.len();
        let head = format!("{open}match crate::mutant::at({first}, {count}) {{ ");
        let mut before = vec![(head, None)];
        for (number, arm) in arms {
            before.push((format!("{number} => "), None));
            before.push((arm, Some(number)));
            before.push((", ".to_owned(), None));
        }
        before.push((format!("_ => {otherwise}"), None));
        self.wraps.push(Wrap {
            part,
            before,
            after: after.to_owned(),
            numbers,
        });
    }

    /// Adds the function that stands for a constant with mutants.
    fn add_constant(&mut self, item: &syn::ItemConst) {
        let whole = span_of(&item.expr);
        let spans: Vec<_> = self.by_span.keys().copied().collect();
        let mut arms = Vec::new();
        for (start, end) in spans {
            let part = Span { start, end };
            if whole.contains(part) {
                let mutants = self.take(part, &[Genre::BinaryOperator, Genre::UnaryOperator]);
                arms.extend(self.replaced(whole, part, &mutants));
            }
        }
        arms.sort();
        let end = self.lines.byte(span_of(item).end);
        let text = |node: Span| &self.text[self.lines.bytes(node)];
        let (of_type, name) = (text(span_of(&item.ty)), &item.ident);
        let open = format!("pub(crate) const fn {name}{OR_MUTANT}() -> {of_type} {{ ");
        self.wrap(end..end, &open, arms, &format!("{name} }} }}"), "");
    }

    /// Returns the text of a whole expression for each mutant of a part.
    fn replaced(
        &self,
        whole: Span,
        part: Span,
        mutants: &[(Number, &Mutant)],
    ) -> Vec<(Number, String)> {
        let (whole, part) = (self.lines.bytes(whole), self.lines.bytes(part));
        let before = &self.text[whole.start..part.start];
        let after = &self.text[part.end..whole.end];
        let replaced = mutants.iter().map(|(number, mutant)| {
            let replaced = format!("{before}{}{after}", mutant.replacement);
            (*number, replaced)
        });
        replaced.collect()
    }

    fn insert(&mut self, part: Range<usize>, before: &str, after: &str) {
        self.wraps.push(Wrap {
            part,
            before: vec![(before.to_owned(), None)],
            after: after.to_owned(),
            numbers: Vec::new(),
        });
    }

    /// Adds a guard to an arm that a mutant deletes.
    fn add_arm(&mut self, arm: &syn::Arm) {
        let mutants = self.take(span_of(arm), &[Genre::MatchArm]);
        let end = self.lines.byte(span_of(&arm.pat).end);
        for (number, _) in mutants {
            let guard = format!(" if crate::mutant::at({number}, 1) != {number}");
            self.wraps.push(Wrap {
                part: end..end,
                before: vec![(guard, Some(number))],
                after: String::new(),
                numbers: vec![number],
            });
        }
    }
}

impl<'a> Visit<'a> for Finder<'_, '_> {
    fn visit_expr_binary(&mut self, node: &'a syn::ExprBinary) {
        self.add(span_of(node), span_of(&node.op), &[Genre::BinaryOperator]);
        visit::visit_expr_binary(self, node);
    }

    fn visit_expr_unary(&mut self, node: &'a syn::ExprUnary) {
        self.add(span_of(node), span_of(&node.op), &[Genre::UnaryOperator]);
        visit::visit_expr_unary(self, node);
    }

    fn visit_expr_struct(&mut self, node: &'a syn::ExprStruct) {
        for pair in node.fields.pairs() {
            let mut span = span_of(pair.value());
            if let Some(comma) = pair.punct() {
                span.end = span_of(comma).end;
            }
            self.add(span_of(node), span, &[Genre::StructField]);
        }
        visit::visit_expr_struct(self, node);
    }

    fn visit_item_const(&mut self, node: &'a syn::ItemConst) {
        self.add_constant(node);
        visit::visit_item_const(self, node);
    }

    fn visit_expr_path(&mut self, node: &'a syn::ExprPath) {
        let last = node.path.segments.last();
        if last.is_some_and(|last| self.constants.contains(&last.ident.to_string())) {
            let part = self.lines.bytes(span_of(node));
            self.insert(part, "", &format!("{OR_MUTANT}()"));
        }
    }

    fn visit_use_name(&mut self, node: &'a syn::UseName) {
        let name = node.ident.to_string();
        if self.constants.contains(&name) {
            let part = self.lines.bytes(span_of(node));
            self.insert(part, "{", &format!(", {name}{OR_MUTANT}}}"));
        }
    }

    /// Leaves a constant in a pattern as it is.
    fn visit_pat(&mut self, node: &'a syn::Pat) {
        if !matches!(node, syn::Pat::Path(_) | syn::Pat::Range(_)) {
            visit::visit_pat(self, node);
        }
    }

    fn visit_arm(&mut self, node: &'a syn::Arm) {
        if let Some((_, guard)) = &node.guard {
            self.add(span_of(guard), span_of(guard), &[Genre::MatchArmGuard]);
        } else {
            self.add_arm(node);
        }
        visit::visit_arm(self, node);
    }
}

/// Writes the new text, and notes where each mutant is.
struct Writer<'t> {
    text: &'t str,
    rewritten: Rewritten,
}

impl<'t> Writer<'t> {
    fn write(text: &'t str, wraps: &[Wrap]) -> Rewritten {
        let rewritten = Rewritten {
            text: String::new(),
            mutants: Vec::new(),
            sites: Vec::new(),
        };
        let mut writer = Self { text, rewritten };
        writer.write_part(0..text.len(), wraps);
        writer.rewritten
    }

    /// Writes a part of the old text with the wraps inside it.
    fn write_part(&mut self, part: Range<usize>, mut wraps: &[Wrap]) {
        let mut at = part.start;
        while let Some((wrap, rest)) = wraps.split_first() {
            let inside = rest
                .iter()
                .take_while(|inner| inner.part.end <= wrap.part.end && !wrap.part.is_empty())
                .take_while(|inner| inner.part.start < wrap.part.end);
            let (inside, behind) = rest.split_at(inside.count());
            self.rewritten.text += &self.text[at..wrap.part.start];
            self.write_wrap(wrap, inside);
            at = wrap.part.end;
            wraps = behind;
        }
        self.rewritten.text += &self.text[at..part.end];
    }

    fn write_wrap(&mut self, wrap: &Wrap, inside: &[Wrap]) {
        let start = self.rewritten.text.len();
        for (text, number) in &wrap.before {
            let from = self.rewritten.text.len();
            self.rewritten.text += text;
            if let Some(number) = number {
                let bytes = from..self.rewritten.text.len();
                self.rewritten.mutants.push((bytes, *number));
            }
        }
        self.write_part(wrap.part.clone(), inside);
        self.rewritten.text += &wrap.after;
        let bytes = start..self.rewritten.text.len();
        self.rewritten.sites.push((bytes, wrap.numbers.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(genre: Genre, place: (usize, usize), len: usize, replacement: &str) -> Mutant {
        let (line, column) = place;
        let end = column + len;
        Mutant {
            name: format!("{line}:{column}"),
            file: "core/src/a.rs".into(),
            span: Span {
                start: Place { line, column },
                end: Place { line, column: end },
            },
            replacement: replacement.to_owned(),
            genre,
            function: None,
            key: String::new(),
        }
    }

    fn rewritten(text: &str, mutants: &[Mutant]) -> String {
        let numbered: Vec<_> = (1..).zip(mutants).collect();
        let names = constants(text, &numbered).unwrap();
        rewrite(text, &numbered, &names).unwrap().text
    }

    #[test]
    fn each_kind_of_mutant_is_chosen_by_its_number() {
        let less = "fn f(a: u8) -> bool { a < 5 }";
        let body = mutant(Genre::FnValue, (1, 23), 5, "true");
        let operator = mutant(Genre::BinaryOperator, (1, 25), 1, ">");
        let arm = mutant(Genre::MatchArm, (1, 19), 8, "");
        let constant = mutant(Genre::BinaryOperator, (1, 17), 1, "-");
        for (text, mutants, expected) in [
            (
                less,
                vec![operator.clone()],
                "fn f(a: u8) -> bool { (match crate::mutant::at(1, 1) { 1 => a > 5, _ => a < 5 }) }",
            ),
            (
                less,
                vec![body, operator],
                "fn f(a: u8) -> bool { match crate::mutant::at(1, 1) { 1 => return true, _ => {} } \
                 (match crate::mutant::at(2, 1) { 2 => a > 5, _ => a < 5 }) }",
            ),
            (
                "fn f() { !true; }",
                vec![mutant(Genre::UnaryOperator, (1, 10), 1, "")],
                "fn f() { (match crate::mutant::at(1, 1) { 1 => true, _ => !true }); }",
            ),
            (
                "fn f() { match 1 {1 => (), _ => ()} }",
                vec![arm],
                "fn f() { match 1 {1 if crate::mutant::at(1, 1) != 1 => (), _ => ()} }",
            ),
            (
                "const A: u8 = 1 + 2; fn f() -> u8 { A }",
                vec![constant],
                "const A: u8 = 1 + 2;pub(crate) const fn A_or_mutant() -> u8 \
                 { match crate::mutant::at(1, 1) { 1 => 1 - 2, _ => A } } fn f() -> u8 { A_or_mutant() }",
            ),
        ] {
            assert_eq!(rewritten(text, &mutants), expected);
        }
    }
}
