//! A command's words cut into its parts, as its verb is written.

use crate::branch::likely;
use crate::grammar::given::{Given, ValuesAt};
use crate::grammar::numbers::within;
use crate::grammar::setting::Setting;
use crate::grammar::syntax::{Keys, Opt, Part, Rest, TokenKind, Verb};
use crate::values::name::{Name, Names};
use crate::values::refusal::Refusal;
use crate::values::token::Token;

type Words<'a> = &'a [&'a [u8]];

/// The words of a command; what they mean is still unread.
pub struct Parts<'a> {
    verb: &'static Verb,
    keys: Words<'a>,
    /// Empty where the verb takes none.
    token: &'a [u8],
    /// The options among what is left.
    pub given: Given<'a>,
}

impl<'a> Parts<'a> {
    /// The parts of a command of this verb, without any words yet.
    pub fn of(verb: &'static Verb) -> Self {
        Self {
            verb,
            keys: &[],
            token: b"",
            given: Given::default(),
        }
    }

    /// Cuts the words behind the command's name; the names of its keys, and its token. Apart from the verbs: what is
    /// executed for several commands is fetched once.
    ///
    /// # Errors
    /// Those of [`Parts::cut`], [`Parts::names`] and [`Parts::token`], in this order.
    #[inline(never)]
    pub fn subject(
        &mut self,
        words: Words<'a>,
        keys: Keys,
        setting: &Setting<'_>,
    ) -> Result<(Names, Token), Refusal> {
        self.cut(words, keys)?;
        let names = self.names(setting.db)?;
        let token = self.token(setting.draw_token)?;
        Ok((names, token))
    }

    /// Cuts the words behind the command's name.
    ///
    /// # Errors
    /// Arity, numkeys, syntax, in this order.
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
        match self.verb.rest {
            Rest::Options([]) if !words.is_empty() => Err(Refusal::Arity),
            Rest::Options(options) if !words.is_empty() => find(words, options, &mut self.given),
            Rest::Options(_) | Rest::Words(_) => Ok(()),
        }
    }

    /// The names of its keys; one alone costs no allocation.
    ///
    /// # Errors
    /// [`Refusal::DuplicateKey`]
    #[inline(always)]
    fn names(&self, db: i32) -> Result<Names, Refusal> {
        match self.keys {
            [key] => Ok(Names::one(Name::new(db, key))),
            keys => several_names(db, keys),
        }
    }

    /// The name of the first key, for a command that has no other.
    pub fn name(&self, db: i32) -> Result<Name, Refusal> {
        let key = self.keys.first().ok_or(Refusal::Arity)?;
        Ok(Name::new(db, key))
    }

    /// The token.
    ///
    /// # Errors
    /// Those of a token, and what `draw` fails with.
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

/// The keys behind their number, and what comes behind them: `needed` words at least.
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

/// Finds the options among `words`: in any order and any case, none twice, none that isn't one of
/// `parts`, and as those allow.
#[inline(never)]
fn find<'a>(words: Words<'a>, parts: &[Part], given: &mut Given<'a>) -> Result<(), Refusal> {
    given.words = words;
    let mut rest = words;
    let mut is_to_be_matched = false;
    while let Some((word, behind)) = rest.split_first() {
        let (option, standing) = option_among(parts, word).ok_or(Refusal::Syntax)?;
        is_to_be_matched |= standing == Standing::Led || rest.len() < words.len();
        let place = words.len() - behind.len();
        rest = behind.get(option.values.len()..).ok_or(Refusal::Syntax)?;
        let field = (option.field)(given);
        if field.is_given() {
            return Err(Refusal::Syntax);
        }
        // As no option is given twice, so many words are all.
        *field = ValuesAt(u8::try_from(place).map_err(|_| Refusal::Syntax)?);
    }
    if !is_to_be_matched || parts.iter().all(|part| part.allows(given)) {
        Ok(())
    } else {
        Err(Refusal::Syntax)
    }
}

/// The option of these parts that a word names.
fn option_among<'p>(parts: &'p [Part], word: &[u8]) -> Option<(&'p Opt, Standing)> {
    parts.iter().find_map(|part| part.option(word))
}

impl Opt {
    #[inline(never)]
    fn is(&self, word: &[u8]) -> bool {
        word.eq_ignore_ascii_case(self.word.to_bytes())
    }

    fn is_given(&self, given: &mut Given<'_>) -> bool {
        (self.field)(given).is_given()
    }
}

/// Whether an option may be a command's only one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Alone,
    /// Only where the one is that leads it.
    Led,
}

impl Part {
    /// The option of this part that a word names.
    #[inline(always)]
    fn option(&self, word: &[u8]) -> Option<(&Opt, Standing)> {
        match self {
            Self::Free(option) => option.is(word).then_some((option, Standing::Alone)),
            Self::OneOf(_, parts) => option_among(parts, word),
            Self::Led(_, first, _) if first.is(word) => Some((first, Standing::Alone)),
            Self::Led(_, _, others) => {
                let (option, _) = option_among(others, word)?;
                Some((option, Standing::Led))
            }
        }
    }

    /// Whether any of its options is given.
    fn is_given(&self, given: &mut Given<'_>) -> bool {
        match self {
            Self::Free(option) => option.is_given(given),
            Self::OneOf(_, parts) => parts.iter().any(|part| part.is_given(given)),
            Self::Led(_, first, others) => {
                first.is_given(given) || others.iter().any(|part| part.is_given(given))
            }
        }
    }

    /// Whether its options go together that are given.
    fn allows(&self, given: &mut Given<'_>) -> bool {
        match self {
            Self::Free(_) => true,
            Self::OneOf(_, parts) => {
                let count = parts.iter().filter(|part| part.is_given(given)).count();
                count < 2 && parts.iter().all(|part| part.allows(given))
            }
            Self::Led(_, first, others) => others
                .iter()
                .all(|part| part.allows(given) && (first.is_given(given) || !part.is_given(given))),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::grammar::syntax;

    use super::*;

    fn options(verb: &Verb) -> Vec<Opt> {
        match verb.rest {
            Rest::Options(parts) => parts.iter().flat_map(options_of).collect(),
            Rest::Words(_) => Vec::new(),
        }
    }

    fn options_of(part: &Part) -> Vec<Opt> {
        match *part {
            Part::Free(option) => vec![option],
            Part::OneOf(_, parts) => parts.iter().flat_map(options_of).collect(),
            Part::Led(_, first, others) => {
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
                let mut given = Given::default();
                *(option.field)(&mut given) = ValuesAt(1);
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
            field: |given| &mut given.px,
        };
        const LED: Opt = Opt {
            word: c"LED",
            values: &[MS],
            field: |given| &mut given.ex,
        };
        const OTHER: Opt = Opt {
            word: c"OTHER",
            values: &[],
            field: |given| &mut given.all,
        };
        const INNER: Opt = Opt {
            word: c"INNER",
            values: &[],
            field: |given| &mut given.shared,
        };
        const MS: syntax::Value = syntax::Value {
            shown: "ms",
            name: c"milliseconds",
            kind: syntax::Kind::Number,
        };
        const PARTS: &[Part] = &[Part::Led(
            c"mode",
            TWO,
            &[
                Part::Led(c"led", LED, &[Part::Free(INNER)]),
                Part::Free(OTHER),
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
            let found = find(&words, PARTS, &mut Given::default());
            assert_eq!(found.is_ok(), fits, "{line}");
        }
        let words: [&[u8]; 4] = [b"OTHER", b"TWO", b"1", b"2"];
        let mut given = Given::default();
        assert_eq!(find(&words, PARTS, &mut given), Ok(()));
        assert_eq!(given.px, ValuesAt(2));
    }
}
