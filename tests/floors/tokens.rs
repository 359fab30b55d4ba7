//! The paths in what a macro is given, which is no code before the macro has made code of it.
//!
//! A path is at least two names with `::` between them, or such a one with a group behind it, as in
//! `crate::{a, b}`. Not counted: what follows `$`, which the macro fills in, except for `$crate`; and
//! what follows a `::` that has no name before it, as in `::std`.

use proc_macro2::{Delimiter, Ident, Punct, Spacing, TokenStream, TokenTree};
use syn::ext::IdentExt;

/// A path as it was found.
pub struct Sighting {
    pub path: Vec<String>,
    /// The line where its last name stands.
    pub line: usize,
}

/// All paths in these tokens and in the groups among them.
pub fn sightings(tokens: TokenStream) -> Vec<Sighting> {
    let mut reader = Reader::new(tokens);
    while let Some(token) = reader.next() {
        match token {
            TokenTree::Group(group) => reader.found.extend(sightings(group.stream())),
            TokenTree::Ident(first) => reader.path(&[], &first),
            TokenTree::Punct(mark) => reader.skip_foreign(&mark),
            TokenTree::Literal(_) => {}
        }
    }
    let at_least_two = |found: &Sighting| found.path.len() > 1;
    reader.found.into_iter().filter(at_least_two).collect()
}

/// The paths in the group that follows this beginning of a path.
fn in_group(beginning: &[String], tokens: TokenStream) -> Vec<Sighting> {
    let mut reader = Reader::new(tokens);
    while let Some(token) = reader.next() {
        match token {
            TokenTree::Ident(name) if name == "as" => reader.at += 1,
            TokenTree::Ident(first) => reader.path(beginning, &first),
            TokenTree::Punct(star) if star.as_char() == '*' => reader.found.push(Sighting {
                path: beginning.to_vec(),
                line: star.span().start().line,
            }),
            _ => {}
        }
    }
    reader.found
}

/// Reads tokens one after the other.
struct Reader {
    tokens: Vec<TokenTree>,
    at: usize,
    found: Vec<Sighting>,
}

impl Reader {
    fn new(tokens: TokenStream) -> Self {
        Self {
            tokens: tokens.into_iter().collect(),
            at: 0,
            found: Vec::new(),
        }
    }

    fn next(&mut self) -> Option<TokenTree> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token
    }

    /// Reads on from the first name of a path, of which this beginning was read already.
    fn path(&mut self, beginning: &[String], first: &Ident) {
        let mut path = beginning.to_vec();
        let mut line = first.span().start().line;
        push(&mut path, first);
        while self.take_colons() {
            match self.tokens.get(self.at).cloned() {
                Some(TokenTree::Ident(name)) => {
                    line = name.span().start().line;
                    push(&mut path, &name);
                }
                Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                    self.found.extend(in_group(&path, group.stream()));
                    self.at += 1;
                    return;
                }
                _ => break,
            }
            self.at += 1;
        }
        self.found.push(Sighting { path, line });
    }

    /// Steps over a `::`, if that is next.
    fn take_colons(&mut self) -> bool {
        let there = self.colons_at(self.at);
        if there {
            self.at += 2;
        }
        there
    }

    fn colons_at(&self, at: usize) -> bool {
        let colon = |token: Option<&TokenTree>| match token {
            Some(TokenTree::Punct(mark)) if mark.as_char() == ':' => Some(mark.spacing()),
            _ => None,
        };
        colon(self.tokens.get(at)) == Some(Spacing::Joint)
            && colon(self.tokens.get(at + 1)).is_some()
    }

    /// Steps over the path that follows this mark, which was just read, if it isn't one of this crate.
    fn skip_foreign(&mut self, mark: &Punct) {
        if self.colons_at(self.at - 1) {
            self.at += 1;
            self.skip_path();
        } else if mark.as_char() == '$' && !self.at_crate() {
            self.skip_path();
        }
    }

    fn at_crate(&self) -> bool {
        matches!(self.tokens.get(self.at), Some(TokenTree::Ident(name)) if name == "crate")
    }

    fn skip_path(&mut self) {
        let before = self.found.len();
        if let Some(TokenTree::Ident(first)) = self.tokens.get(self.at).cloned() {
            self.at += 1;
            self.path(&[], &first);
        }
        self.found.truncate(before);
    }
}

/// Adds the next name to a path: `a::{self}` is `a`.
pub fn push(path: &mut Vec<String>, name: &Ident) {
    if path.is_empty() || name != "self" {
        path.push(name.unraw().to_string());
    }
}
