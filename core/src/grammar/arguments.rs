//! Arguments: a command's words, split into keys, token and options by the syntax of its verb.

use crate::grammar::context::ParseContext;
use crate::grammar::numbers::within;
use crate::grammar::options::{ArgIndex, Options};
use crate::grammar::syntax::{Keys, Opt, OptionGroup, Rest, TokenKind, Verb};
use crate::hints::likely;
use crate::values::name::{Name, Names};
use crate::values::refusal::Refusal;
use crate::values::token::Token;

type Words<'a> = &'a [&'a [u8]];

/// The words of a command after they were split. Their values are not read yet.
pub struct Arguments<'a> {
    verb: &'static Verb,
    keys: Words<'a>,
    /// The token; empty if the verb takes none.
    token: &'a [u8],
    /// The options behind the keys and the token.
    pub options: Options<'a>,
}

impl<'a> Arguments<'a> {
    /// Returns the arguments of a command of this verb, without words yet.
    pub fn of(verb: &'static Verb) -> Self {
        Self {
            verb,
            keys: &[],
            token: b"",
            options: Options::default(),
        }
    }

    /// Splits the words behind the command's name. Returns the names of its keys, and its token.
    ///
    /// # Errors
    /// The errors of [`Arguments::cut`], [`Arguments::names`] and [`Arguments::token`], in this
    /// order.
    // perf: out of line, so that the code is fetched once for several commands.
    #[inline(never)]
    pub fn subject(
        &mut self,
        words: Words<'a>,
        keys: Keys,
        context: &ParseContext<'_>,
    ) -> Result<(Names, Token), Refusal> {
        self.cut(words, keys)?;
        let names = self.names(context.db)?;
        let token = self.token(context.draw_token)?;
        Ok((names, token))
    }

    /// Splits the words behind the command's name.
    ///
    /// # Errors
    /// [`Refusal::Arity`], [`Refusal::Numkeys`], [`Refusal::Syntax`], in this order.
    #[inline(always)]
    pub fn cut(&mut self, words: Words<'a>, keys: Keys) -> Result<(), Refusal> {
        let (keys, words) = match keys {
            Keys::One => words.split_at_checked(1).ok_or(Refusal::Arity)?,
            Keys::Many => several_keys(words, usize::from(self.verb.token.is_some()))?,
        };
        self.keys = keys;
        let (token, words) = match self.verb.token {
            Some(_) => words.split_first().ok_or(Refusal::Arity)?,
            None => (&self.token, words),
        };
        self.token = token;
        self.cut_options(words)
    }

    /// Splits the words behind the keys and the token.
    ///
    /// # Errors
    /// [`Refusal::Arity`], [`Refusal::Syntax`]
    #[inline(always)]
    pub fn cut_options(&mut self, words: Words<'a>) -> Result<(), Refusal> {
        match self.verb.rest {
            Rest::Options([]) if !words.is_empty() => Err(Refusal::Arity),
            Rest::Options(options) if !words.is_empty() => find(words, options, &mut self.options),
            Rest::Options(_) | Rest::Words(_) => Ok(()),
        }
    }

    /// Returns the names of the keys.
    ///
    /// # Errors
    /// [`Refusal::DuplicateKey`]
    // perf: a single key needs no allocation.
    #[inline(always)]
    fn names(&self, db: i32) -> Result<Names, Refusal> {
        match self.keys {
            [key] => Ok(Names::one(Name::new(db, key))),
            keys => several_names(db, keys),
        }
    }

    /// Returns the name of the first key, for a command with a single key.
    ///
    /// # Errors
    /// [`Refusal::Arity`] if there is no key.
    pub fn name(&self, db: i32) -> Result<Name, Refusal> {
        let key = self.keys.first().ok_or(Refusal::Arity)?;
        Ok(Name::new(db, key))
    }

    /// Returns the token. Draws a new one for `*` if the verb allows it.
    ///
    /// # Errors
    /// [`Refusal::TokenLength`], [`Refusal::TokenStar`], and the errors of `draw`.
    #[inline(always)]
    pub fn token(&self, draw: &dyn Fn() -> Result<Token, Refusal>) -> Result<Token, Refusal> {
        if likely(self.token != b"*") {
            return Token::new(self.token);
        }
        match self.verb.token {
            Some(TokenKind::GivenOrNew) => draw(),
            Some(TokenKind::Existing) | None => Err(Refusal::TokenStar),
        }
    }
}

/// Splits words that begin with numkeys. Returns the keys and the words behind them, of which there
/// are at least `needed`.
///
/// # Errors
/// [`Refusal::Arity`], [`Refusal::Numkeys`]
#[inline(never)]
fn several_keys<'a>(words: Words<'a>, needed: usize) -> Result<(Words<'a>, Words<'a>), Refusal> {
    let (numkeys, words) = words.split_first().ok_or(Refusal::Arity)?;
    let most = words
        .len()
        .checked_sub(needed)
        .filter(|&most| most > 0)
        .ok_or(Refusal::Arity)?;
    let count = within(numkeys, 1, most as u64, Refusal::Numkeys)?;
    words.split_at_checked(count as usize).ok_or(Refusal::Arity)
}

#[inline(never)]
fn several_names(db: i32, keys: &[&[u8]]) -> Result<Names, Refusal> {
    let names = keys.iter().map(|key| Name::new(db, key)).collect();
    Names::set(names).ok_or(Refusal::DuplicateKey)
}

/// Finds the options among `words`, in any order and any case.
///
/// # Errors
/// [`Refusal::Syntax`] if an option is given twice, lacks a value, is not in `groups`, or is not
/// allowed by its group.
#[inline(never)]
fn find<'a>(
    words: Words<'a>,
    groups: &[OptionGroup],
    options: &mut Options<'a>,
) -> Result<(), Refusal> {
    options.words = words;
    let mut rest = words;
    // perf: most commands give no option that excludes or needs another one.
    let (mut alternatives, mut prefixed) = (0_usize, false);
    while let Some((word, behind)) = rest.split_first() {
        let (option, standing) = option_among(groups, word).ok_or(Refusal::Syntax)?;
        match standing {
            Standing::Alone => {}
            Standing::Alternative => alternatives += 1,
            Standing::Prefixed => prefixed = true,
        }
        let place = words.len() - behind.len();
        rest = behind.get(option.values.len()..).ok_or(Refusal::Syntax)?;
        let field = (option.field)(options);
        if field.is_given() {
            return Err(Refusal::Syntax);
        }
        // No option is given twice, so the index of every option fits.
        *field = ArgIndex(u8::try_from(place).map_err(|_| Refusal::Syntax)?);
    }
    let is_to_be_matched = prefixed || alternatives > 1;
    if !is_to_be_matched || groups.iter().all(|group| group.allows(options)) {
        Ok(())
    } else {
        Err(Refusal::Syntax)
    }
}

/// Returns the option of these groups that a word names.
fn option_among<'p>(groups: &'p [OptionGroup], word: &[u8]) -> Option<(&'p Opt, Standing)> {
    groups.iter().find_map(|group| group.option(word))
}

impl Opt {
    #[inline(never)]
    fn is(&self, word: &[u8]) -> bool {
        word.eq_ignore_ascii_case(self.word.to_bytes())
    }

    fn is_given(&self, options: &mut Options<'_>) -> bool {
        (self.field)(options).is_given()
    }
}

/// The dependence of an option on another option.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Allowed by itself.
    Alone,
    /// Allowed without the other options of its group.
    Alternative,
    /// Allowed only with the option that leads its group.
    Prefixed,
}

impl OptionGroup {
    /// Returns the option of this group that a word names.
    #[inline(always)]
    fn option(&self, word: &[u8]) -> Option<(&Opt, Standing)> {
        match self {
            Self::Free(option) => option.is(word).then_some((option, Standing::Alone)),
            Self::OneOf(_, groups) => {
                let (option, standing) = option_among(groups, word)?;
                let is_free = standing == Standing::Alone;
                let standing = if is_free {
                    Standing::Alternative
                } else {
                    standing
                };
                Some((option, standing))
            }
            Self::Prefixed(_, first, _) if first.is(word) => Some((first, Standing::Alone)),
            Self::Prefixed(_, _, others) => {
                let (option, _) = option_among(others, word)?;
                Some((option, Standing::Prefixed))
            }
        }
    }

    /// Returns true if any option of the group is given.
    fn is_given(&self, options: &mut Options<'_>) -> bool {
        match self {
            Self::Free(option) => option.is_given(options),
            Self::OneOf(_, groups) => groups.iter().any(|group| group.is_given(options)),
            Self::Prefixed(_, first, others) => {
                first.is_given(options) || others.iter().any(|group| group.is_given(options))
            }
        }
    }

    /// Returns true if the group allows its given options together.
    fn allows(&self, options: &mut Options<'_>) -> bool {
        match self {
            Self::Free(_) => true,
            Self::OneOf(_, groups) => {
                let count = groups
                    .iter()
                    .filter(|group| group.is_given(options))
                    .count();
                count < 2 && groups.iter().all(|group| group.allows(options))
            }
            Self::Prefixed(_, first, others) => others.iter().all(|group| {
                group.allows(options) && (first.is_given(options) || !group.is_given(options))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::grammar::syntax;

    use super::*;

    fn options(verb: &Verb) -> Vec<Opt> {
        match verb.rest {
            Rest::Options(groups) => groups.iter().flat_map(options_of).collect(),
            Rest::Words(_) => Vec::new(),
        }
    }

    fn options_of(group: &OptionGroup) -> Vec<Opt> {
        match *group {
            OptionGroup::Free(option) => vec![option],
            OptionGroup::OneOf(_, groups) => groups.iter().flat_map(options_of).collect(),
            OptionGroup::Prefixed(_, first, others) => {
                let others = others.iter().flat_map(options_of);
                std::iter::once(first).chain(others).collect()
            }
        }
    }

    #[test]
    fn each_option_of_a_verb_has_a_word_and_a_field_of_its_own() {
        let verbs = [
            syntax::ACQUIRE,
            syntax::WAIT,
            syntax::QUEUE,
            syntax::EXTEND,
            syntax::RELEASE,
            syntax::INFO,
        ];
        for verb in verbs {
            let options = options(&verb);
            assert!(!options.is_empty(), "{}", verb.word);
            for option in &options {
                let mut given = Options::default();
                *(option.field)(&mut given) = ArgIndex(1);
                let same_field = options.iter().filter(|it| it.is_given(&mut given));
                assert_eq!(same_field.count(), 1, "{} {:?}", verb.word, option.word);
                let same_word = options.iter().filter(|it| it.is(option.word.to_bytes()));
                assert_eq!(same_word.count(), 1, "{} {:?}", verb.word, option.word);
            }
        }
    }

    #[test]
    fn an_option_may_take_several_values_and_lead_several() {
        const TWO: Opt = Opt {
            word: c"TWO",
            values: &[MS, MS],
            field: |options| &mut options.px,
        };
        const LED: Opt = Opt {
            word: c"LED",
            values: &[MS],
            field: |options| &mut options.ex,
        };
        const OTHER: Opt = Opt {
            word: c"OTHER",
            values: &[],
            field: |options| &mut options.all,
        };
        const INNER: Opt = Opt {
            word: c"INNER",
            values: &[],
            field: |options| &mut options.shared,
        };
        const MS: syntax::Value = syntax::Value {
            shown: "ms",
            name: c"milliseconds",
            kind: syntax::Kind::Number,
        };
        const PARTS: &[OptionGroup] = &[OptionGroup::Prefixed(
            c"mode",
            TWO,
            &[
                OptionGroup::Prefixed(c"led", LED, &[OptionGroup::Free(INNER)]),
                OptionGroup::Free(OTHER),
            ],
        )];
        let table = [
            ("two 1 2", true),
            ("other LED LED TWO 1 2", true),
            ("TWO 1", false),
            ("TWO 1 2 3", false),
            ("TWO 1 2 LED", false),
            ("OTHER", false),
            ("LED 1 OTHER", false),
            ("INNER LED 1 TWO 1 2", true),
            ("INNER TWO 1 2", false),
            ("LED 1 INNER", false),
        ];
        for (line, fits) in table {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let found = find(&words, PARTS, &mut Options::default());
            assert_eq!(found.is_ok(), fits, "{line}");
        }
        let words: [&[u8]; 4] = [b"OTHER", b"TWO", b"1", b"2"];
        let mut options = Options::default();
        assert_eq!(find(&words, PARTS, &mut options), Ok(()));
        assert_eq!(options.px, ArgIndex(2));
    }
}
