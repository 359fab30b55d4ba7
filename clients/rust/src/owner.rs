//! An owner's requests to the server, their repetition, and the evaluation of the replies.
//!
//! Threads and tasks run the same code, written as futures over an [`Io`] that each side provides.
//! The `Io` of threads blocks instead of returning pending, so a future is ready at its first poll.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, RedisResult, Value};

use crate::commands::{answer, left, Answer, Commands, Request};
use crate::error::{may_pass, Backoff, Error};
use crate::grant::{Grant, Observer};
use crate::mutex::Mutex;

/// The time limit of a connection attempt, and of a reply that the server sends at once.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The longest time of a wait on one connection. The wait is then sent again on a new connection,
/// so that a connection that died silently is noticed.
const SLICE: Duration = Duration::from_secs(15);

/// The longest delay of the server's reply when a wait ends. Also the time limit of each of the two
/// commands that clean up after a wait.
const GRACE: Duration = Duration::from_millis(250);

/// The sending of commands and the pauses between them.
pub(crate) trait Io {
    /// Sends a command, in a cluster to the node of the key `route`, and returns the reply. Fails
    /// if the reply takes longer than `within`.
    async fn ask(&mut self, command: &Cmd, route: &[u8], within: Duration) -> RedisResult<Value>;

    /// Pauses until `at`, or until there is a reason to ask again. Returns true if the caller has
    /// given up.
    async fn pause_until(&mut self, at: Instant) -> bool;
}

/// The owner of a token, with its grant. Callers run one `take` or release at a time.
pub(crate) struct Owner<O> {
    pub(crate) commands: Commands,
    held: Mutex<Option<Arc<Grant<O>>>>,
}

impl<O: Observer> Owner<O> {
    pub(crate) fn new(commands: Commands) -> Owner<O> {
        Owner {
            commands,
            held: Mutex::default(),
        }
    }

    /// Acquires the lock, or adds a hold if it is held. Returns `None` if it was not granted by
    /// `end`, or the caller gave up.
    pub(crate) async fn take(
        &self,
        io: &mut impl Io,
        request: &Request,
        end: Option<Instant>,
    ) -> Result<Option<Arc<Grant<O>>>, Error> {
        let before = self.held.lock().clone().filter(|grant| grant.is_held());
        let holds = before.as_ref().map_or(1, |grant| grant.holds() + 1);
        let is_over = || end.is_some_and(|end| Instant::now() >= end);
        let mut soon = self.commands.options.lease / 10;
        let mut backoff = Backoff::new();
        loop {
            let sent = Instant::now();
            let left = end.map(|end| end.saturating_duration_since(sent));
            let within = match request {
                Request::Wait => left.unwrap_or(SLICE).min(SLICE) + GRACE,
                _ => ANSWER_WITHIN,
            };
            let within = within + self.commands.held_back();
            let command = self.commands.take(request, holds, left);
            let asked = self.ask(io, &command, within).await;
            let (again, failed) = match asked.and_then(|value| answer(&value)) {
                // The grant may be old if the reply took long, because this process may have been
                // stopped. Asking again sets the lease at a known time. The second reply only has
                // to come within the lease.
                Ok(Answer::Granted(_)) if sent.elapsed() > soon => {
                    soon = self.commands.options.lease;
                    continue;
                }
                Ok(Answer::Granted(fence)) => {
                    return Ok(Some(self.granted(before, fence, sent, holds)));
                }
                Ok(Answer::NotGranted) if *request == Request::Try || is_over() => return Ok(None),
                Ok(Answer::NotGranted) => (sent, None),
                Ok(Answer::Place) => {
                    backoff = Backoff::new();
                    (sent + self.place_lasts() / 3, None)
                }
                Err(error) if error.code() == Some("NOREPLICAS") => {
                    // The token may hold the lock, without enough replicas that know of it.
                    self.give_up(io, holds - 1).await;
                    return Err(error.into());
                }
                Err(error) if !may_pass(&error) => return Err(error.into()),
                // No pause after a timeout, because time has passed already and the queue skips an
                // absent waiter.
                Err(error) if error.is_timeout() => (sent, Some(error)),
                Err(error) => (backoff.next(end), Some(error)),
            };
            let again = end.map_or(again, |end| again.min(end));
            if io.pause_until(again).await || is_over() {
                self.give_up(io, holds - 1).await;
                return failed.map_or(Ok(None), |error| Err(error.into()));
            }
        }
    }

    /// Returns how long a place lasts without another request, or a grant to it, which also ends
    /// with its lease.
    fn place_lasts(&self) -> Duration {
        self.commands.options.keep.min(self.commands.options.lease)
    }

    fn granted(
        &self,
        before: Option<Arc<Grant<O>>>,
        fence: i64,
        sent: Instant,
        holds: u32,
    ) -> Arc<Grant<O>> {
        if let Some(grant) = before {
            if grant.fence == fence && grant.is_held() {
                grant.set_holds(holds);
                grant.renewed(sent, self.commands.options.lease);
                return grant;
            }
            grant.lose();
        }
        let grant = Arc::new(Grant::new(fence, sent, &self.commands.options));
        *self.held.lock() = Some(Arc::clone(&grant));
        grant
    }

    /// Cancels a wait, and releases everything except the `holds` from before it. CANCEL comes
    /// first, so that no grant can follow the RELEASE.
    async fn give_up(&self, io: &mut impl Io, holds: u32) {
        for command in [self.commands.cancel(), self.commands.release(holds)] {
            let _ = self.ask(io, &command, GRACE).await;
        }
    }

    /// Cancels the wait of another call with this token, if the wait has reached the server.
    pub(crate) async fn cancel(&self, io: &mut impl Io) {
        let _ = self.ask(io, &self.commands.cancel(), ANSWER_WITHIN).await;
    }

    /// Removes one hold, and tries until `until`. Returns true if the lock was still held.
    pub(crate) async fn release(
        &self,
        io: &mut impl Io,
        grant: &Arc<Grant<O>>,
        until: Instant,
    ) -> Result<bool, Error> {
        let last = self.commands.release(0);
        self.end_hold(io, grant, until, last).await
    }

    /// Like `release`, except that the last hold ends only after `rest`. Tries until the lease
    /// ends.
    pub(crate) async fn release_after(
        &self,
        io: &mut impl Io,
        grant: &Arc<Grant<O>>,
        rest: Duration,
    ) -> Result<bool, Error> {
        let last = self.commands.release_after(rest);
        self.end_hold(io, grant, grant.until(), last).await
    }

    /// Removes one hold. `last` is the command that ends the last hold.
    async fn end_hold(
        &self,
        io: &mut impl Io,
        grant: &Arc<Grant<O>>,
        until: Instant,
        last: Cmd,
    ) -> Result<bool, Error> {
        let Some((holds, lease_ends)) = grant.release() else {
            grant.lose();
            if self.forget(grant) {
                // Some of the keys may still be held.
                let _ = self.ask(io, &self.commands.release(0), ANSWER_WITHIN).await;
            }
            return Ok(false);
        };
        let command = if holds == 0 {
            self.forget(grant);
            last
        } else {
            self.commands.release(holds)
        };
        let (answer, sent_again) = self.ask_until(io, &command, until.min(lease_ends)).await?;
        // If a reply was lost, the command before may have released the lock.
        let released = self.commands.held_all(&answer) || (sent_again && holds == 0);
        if !released {
            grant.lose_at_release();
        }
        Ok(released)
    }

    /// Drops the grant if it is the latest, and returns true if it was.
    fn forget(&self, grant: &Arc<Grant<O>>) -> bool {
        self.held
            .lock()
            .take_if(|it| Arc::ptr_eq(it, grant))
            .is_some()
    }

    pub(crate) async fn extend(
        &self,
        io: &mut impl Io,
        grant: &Grant<O>,
        lease: Duration,
    ) -> Result<bool, Error> {
        if !grant.is_held() {
            return Ok(false);
        }
        let sent = Instant::now();
        let extend = self.commands.extend(lease);
        let (answer, _) = self.ask_until(io, &extend, grant.until()).await?;
        Ok(self.extended(grant, &answer, sent, lease))
    }

    /// Renews a grant, or marks it as lost if its lease has ended.
    pub(crate) async fn renew(&self, io: &mut impl Io, grant: &Grant<O>) {
        let sent = Instant::now();
        let lease = grant.lease();
        let left = grant.until().saturating_duration_since(sent);
        if left.is_zero() {
            return grant.lose();
        }
        let renew = self.commands.renew(lease);
        match self.ask(io, &renew, left.min(ANSWER_WITHIN)).await {
            Ok(answer) => drop(self.extended(grant, &answer, sent, lease)),
            Err(_) => grant.not_renewed(),
        }
    }

    fn extended(&self, grant: &Grant<O>, answer: &Value, sent: Instant, lease: Duration) -> bool {
        let extended = self.commands.held_all(answer);
        if extended {
            grant.renewed(sent, lease);
        } else {
            grant.lose();
        }
        extended
    }

    /// Returns the remaining lease on the server, the shortest of all keys.
    pub(crate) async fn left(&self, io: &mut impl Io) -> Result<Duration, Error> {
        let mut least = Duration::MAX;
        for check in self.commands.checks() {
            let until = Instant::now() + ANSWER_WITHIN;
            let (answer, _) = self.ask_until(io, &check, until).await?;
            least = least.min(left(&answer)?);
        }
        Ok(least)
    }

    /// Sends a command until it gets a reply, or until `until`. Returns the reply, and true if the
    /// command was sent more than once.
    async fn ask_until(
        &self,
        io: &mut impl Io,
        command: &Cmd,
        until: Instant,
    ) -> RedisResult<(Value, bool)> {
        let mut backoff = Backoff::new();
        let mut sent_again = false;
        loop {
            match self.ask(io, command, ANSWER_WITHIN).await {
                Ok(answer) => return Ok((answer, sent_again)),
                Err(error) if !may_pass(&error) || Instant::now() >= until => return Err(error),
                Err(_) => io.pause_until(backoff.next(Some(until))).await,
            };
            sent_again = true;
        }
    }

    async fn ask(&self, io: &mut impl Io, command: &Cmd, within: Duration) -> RedisResult<Value> {
        io.ask(command, self.commands.route(), within).await
    }

    pub(crate) fn is_held(&self) -> bool {
        let held = self.held.lock();
        held.as_ref().is_some_and(|grant| grant.is_held())
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::thread;

    use super::*;
    use crate::options::Options;
    use crate::sync::done;

    /// An `Io` with prepared replies, which records the commands.
    #[derive(Default)]
    struct Script {
        answers: Vec<RedisResult<Value>>,
        answer_takes: Duration,
        gives_up: bool,
        asked: Vec<String>,
        paused_until: Option<Instant>,
    }

    impl Io for Script {
        async fn ask(&mut self, command: &Cmd, _: &[u8], _: Duration) -> RedisResult<Value> {
            let packed = String::from_utf8(command.get_packed_command()).expect("text");
            let words = packed.split("\r\n").skip(2).step_by(2);
            self.asked.push(words.collect::<Vec<_>>().join(" "));
            thread::sleep(self.answer_takes);
            self.answers.remove(0)
        }

        async fn pause_until(&mut self, at: Instant) -> bool {
            self.paused_until = Some(at);
            self.gives_up
        }
    }

    fn owner(options: Options) -> Owner<()> {
        Owner::new(Commands::new("k".into(), options.token("t")))
    }

    fn granted(fence: i64) -> RedisResult<Value> {
        Ok(Value::Array(vec![
            Value::BulkString(b"t".to_vec()),
            Value::Int(fence),
        ]))
    }

    fn broken<T>() -> RedisResult<T> {
        Err(io::Error::from(io::ErrorKind::BrokenPipe).into())
    }

    fn take(owner: &Owner<()>, script: &mut Script) -> Result<Option<Arc<Grant<()>>>, Error> {
        done(owner.take(script, &Request::Wait, None))
    }

    #[test]
    fn a_wait_given_up_leaves_the_holds_from_before() {
        let owner = owner(Options::new());
        let mut script = Script {
            answers: vec![granted(7), broken(), Ok(Value::Int(0)), Ok(Value::Int(1))],
            gives_up: true,
            ..Script::default()
        };
        let grant = take(&owner, &mut script).expect("an answer");
        let grant = grant.expect("the lock");
        assert!(take(&owner, &mut script).is_err());
        let given_up = ["LOCK.CANCEL k t", "LOCK.RELEASE k t HOLDS 1"];
        assert_eq!(script.asked[2..], given_up);
        assert!(grant.is_held());
    }

    #[test]
    fn a_grant_that_is_long_in_coming_is_confirmed_once() {
        let owner = owner(Options::new().lease(Duration::from_secs(1)));
        let mut script = Script {
            answers: vec![granted(7), granted(7)],
            answer_takes: Duration::from_millis(150),
            ..Script::default()
        };
        let grant = take(&owner, &mut script).expect("an answer");
        assert!(grant.expect("the lock").is_held());
        assert_eq!(script.answers.len(), 0);
    }

    #[test]
    fn a_place_is_asked_for_again_before_a_grant_to_it_ends() {
        for (lease_s, keep_s, third_s) in [(3, 30, 1), (30, 3, 1), (9, 9, 3)] {
            let options = Options::new().lease(Duration::from_secs(lease_s));
            let owner = owner(options.keep(Duration::from_secs(keep_s)));
            let mut script = Script {
                answers: vec![Ok(Value::Int(1)), granted(7)],
                ..Script::default()
            };
            let began = Instant::now();
            let place = Request::Place {
                channel: "channel".to_owned(),
                message: 1,
            };
            let taken = done(owner.take(&mut script, &place, None));
            assert!(taken.expect("an answer").is_some());
            let pause = script.paused_until.expect("a pause") - began;
            let late = pause.saturating_sub(Duration::from_secs(third_s));
            assert!(
                late < Duration::from_millis(500),
                "{lease_s}, {keep_s}: {pause:?}"
            );
        }
    }

    #[test]
    fn the_last_hold_is_left_to_a_lease_and_those_before_it_are_not() {
        let rest = Duration::from_secs(5);
        let last = "LOCK.EXTEND k t PX 5000";
        let tied = "LOCK.EXTEND k t PX 5000 NOSESSION";
        for (options, last) in [(Options::new(), last), (Options::new().session(), tied)] {
            let owner = owner(options);
            let one = || Ok(Value::Int(1));
            let mut script = Script {
                answers: vec![granted(7), granted(7), one(), broken(), one()],
                ..Script::default()
            };
            let grant = take(&owner, &mut script).expect("an answer");
            let grant = grant.expect("the lock");
            take(&owner, &mut script).expect("an answer");
            let mut release_after = || done(owner.release_after(&mut script, &grant, rest));
            assert!(release_after().expect("an answer"));
            assert!(grant.is_held());
            assert!(release_after().expect("an answer"));
            assert_eq!(grant.due(), None);
            assert_eq!(script.asked[2..], ["LOCK.RELEASE k t HOLDS 1", last, last]);
        }
    }

    #[test]
    fn a_release_whose_answer_was_lost_is_sent_again() {
        let owner = owner(Options::new());
        let mut script = Script {
            answers: vec![granted(7), broken(), Ok(Value::Int(0))],
            ..Script::default()
        };
        let grant = take(&owner, &mut script).expect("an answer");
        let grant = grant.expect("the lock");
        let released = done(owner.release(&mut script, &grant, grant.until()));
        assert!(released.expect("an answer"), "the first RELEASE did it");
        assert_eq!(script.asked[1..], ["LOCK.RELEASE k t HOLDS 0"; 2]);
        assert!(!grant.is_lost());
    }
}
