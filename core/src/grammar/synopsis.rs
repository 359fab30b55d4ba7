//! A command's name, synopsis and arity, derived from its syntax.

use crate::grammar::syntax::{Keys, Opt, OptionGroup, Rest, Syntax};

impl Opt {
    /// Returns the synopsis of the option: `PX ms`.
    fn synopsis(&self) -> String {
        let values = self.values.iter().map(|value| value.shown.to_owned());
        let word = self.word.to_string_lossy().into_owned();
        let words: Vec<String> = std::iter::once(word).chain(values).collect();
        words.join(" ")
    }
}

impl OptionGroup {
    /// Returns the synopsis of the group: `PX ms | EX s`.
    fn synopsis(&self) -> String {
        match self {
            Self::Free(option) => option.synopsis(),
            Self::OneOf(_, groups) => {
                let groups: Vec<String> = groups.iter().map(Self::synopsis).collect();
                groups.join(" | ")
            }
            Self::Prefixed(_, first, others) => {
                others.iter().fold(first.synopsis(), |led, other| {
                    format!("{led} {}", other.optional())
                })
            }
        }
    }

    /// Returns the synopsis of the group in brackets: `[PX ms | EX s]`.
    fn optional(&self) -> String {
        format!("[{}]", self.synopsis())
    }
}

impl Syntax {
    /// Returns the command's name as users read it: `LOCK.MACQUIRE`.
    pub fn name(&self) -> String {
        let several = match self.keys {
            Some(Keys::Many) => "M",
            Some(Keys::One) | None => "",
        };
        format!("LOCK.{several}{}", self.verb.word)
    }

    /// Returns the synopsis on one line: `LOCK.ACQUIRE key token [PX ms | EX s] ...`.
    pub fn synopsis(&self) -> String {
        let mut words = vec![self.name()];
        words.extend(self.keys.map(|keys| keys_synopsis(keys).to_owned()));
        words.extend(self.verb.token.map(|_| "token".to_owned()));
        match self.verb.rest {
            Rest::Options(groups) => words.extend(groups.iter().map(OptionGroup::optional)),
            Rest::Words(value) => words.push(format!("{0} [{0} ...]", value.shown)),
        }
        words.join(" ")
    }

    /// Returns the arity as the server defines it: the number of words, including the name. A
    /// negative arity is a minimum.
    pub const fn arity(&self) -> i32 {
        let keys = match self.keys {
            None => 0,
            Some(Keys::One) => 1,
            Some(Keys::Many) => 2,
        };
        let least = 1 + keys + self.verb.token.is_some() as i32;
        match (self.keys, self.verb.rest) {
            (Some(Keys::Many), Rest::Options(_)) => -least,
            (_, Rest::Options([])) => least,
            (_, Rest::Options(_)) => -least,
            (_, Rest::Words(_)) => -(least + 1),
        }
    }
}

const fn keys_synopsis(keys: Keys) -> &'static str {
    match keys {
        Keys::One => "key",
        Keys::Many => "numkeys key [key ...]",
    }
}

#[cfg(test)]
mod tests {
    use crate::grammar::syntax::{Verb, ACQUIRE, APPLY, CHECK, HELP, INFO, RELEASE};

    use super::*;

    fn of(verb: &'static Verb, keys: Option<Keys>) -> (String, i32) {
        let syntax = Syntax { verb, keys };
        (syntax.synopsis(), syntax.arity())
    }

    #[test]
    fn a_synopsis_has_keys_token_and_options_in_their_order() {
        let table = [
            (
                of(&ACQUIRE, Some(Keys::One)),
                "LOCK.ACQUIRE key token [PX ms | EX s] [SHARED [LIMIT n [PERMITS m]]] [REENTRANT | HOLDS n] [SESSION [KEEP ms]] [DATA bytes] [REPLICAS n [WITHIN ms]]",
                -3,
            ),
            (
                of(&RELEASE, Some(Keys::Many)),
                "LOCK.MRELEASE numkeys key [key ...] token [ALL | HOLDS n | LEAVE ms]",
                -4,
            ),
            (of(&CHECK, Some(Keys::One)), "LOCK.CHECK key token", 3),
            (
                of(&CHECK, Some(Keys::Many)),
                "LOCK.MCHECK numkeys key [key ...] token",
                -4,
            ),
            (
                of(&INFO, Some(Keys::One)),
                "LOCK.INFO key [WAITERS count]",
                -2,
            ),
            (of(&HELP, None), "LOCK.HELP", 1),
            (
                of(&APPLY, Some(Keys::One)),
                "LOCK.APPLY key effect [effect ...]",
                -3,
            ),
        ];
        for ((synopsis, arity), expected, expected_arity) in table {
            assert_eq!(synopsis, expected);
            assert_eq!(arity, expected_arity, "{synopsis}");
        }
    }
}
