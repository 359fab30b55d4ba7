//! The expectations of a test of a reply.

use redis::Value;

/// A reply: the value, or the error's full text with its prefix.
pub type Reply = Result<Value, String>;

/// The reply to a granted request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The holder's token.
    pub token: String,
    /// The fence of the grant.
    pub fence: i64,
}

/// Takes a reply apart. Each method fails the test if the reply isn't of the kind in its name.
pub trait Expect {
    /// Returns a `[token, fence]` pair.
    fn grant(self) -> Grant;
    /// Returns an integer.
    fn int(self) -> i64;
    /// Returns a string of any kind.
    fn text(self) -> String;
    /// Returns the bytes of a bulk string.
    fn bytes(self) -> Vec<u8>;
    /// Returns a list.
    fn list(self) -> Vec<Value>;
    /// Expects a nil.
    fn nil(self);
    /// Expects `OK`.
    fn okay(self);
    /// Returns the full text of an error.
    fn error(self) -> String;
    /// Returns a reply of any kind except an error.
    fn value(self) -> Value;
}

impl Expect for Reply {
    #[track_caller]
    fn grant(self) -> Grant {
        match self.as_deref_pair() {
            Some((Value::BulkString(token), Value::Int(fence))) => Grant {
                token: String::from_utf8_lossy(token).into_owned(),
                fence: *fence,
            },
            _ => panic!("not a grant: {self:?}"),
        }
    }

    #[track_caller]
    fn int(self) -> i64 {
        match self {
            Ok(Value::Int(number)) => number,
            other => panic!("not an integer: {other:?}"),
        }
    }

    #[track_caller]
    fn text(self) -> String {
        match self {
            Ok(Value::SimpleString(text) | Value::VerbatimString { text, .. }) => text,
            Ok(Value::Okay) => "OK".to_owned(),
            Ok(Value::BulkString(bytes)) => String::from_utf8(bytes).expect("text in UTF-8"),
            other => panic!("not a string: {other:?}"),
        }
    }

    #[track_caller]
    fn bytes(self) -> Vec<u8> {
        match self {
            Ok(Value::BulkString(bytes)) => bytes,
            other => panic!("not a string: {other:?}"),
        }
    }

    #[track_caller]
    fn list(self) -> Vec<Value> {
        match self {
            Ok(Value::Array(items)) => items,
            other => panic!("not a list: {other:?}"),
        }
    }

    #[track_caller]
    fn nil(self) {
        assert_eq!(self, Ok(Value::Nil), "a nil was expected");
    }

    #[track_caller]
    fn okay(self) {
        assert_eq!(self, Ok(Value::Okay), "an OK was expected");
    }

    #[track_caller]
    fn error(self) -> String {
        match self {
            Err(text) => text,
            Ok(value) => panic!("not an error: {value:?}"),
        }
    }

    #[track_caller]
    fn value(self) -> Value {
        match self {
            Ok(value) => value,
            Err(text) => panic!("an error: {text}"),
        }
    }
}

/// A reply of exactly two items, borrowed.
trait Pair {
    fn as_deref_pair(&self) -> Option<(&Value, &Value)>;
}

impl Pair for Reply {
    fn as_deref_pair(&self) -> Option<(&Value, &Value)> {
        match self {
            Ok(Value::Array(items)) => match items.as_slice() {
                [first, second] => Some((first, second)),
                _ => None,
            },
            _ => None,
        }
    }
}
