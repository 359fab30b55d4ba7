//! A program whose tasks all wait over one connection while the servers change roles. The new
//! primary knows no places, so each task takes a new place with the command that it repeats.

use std::time::Instant;

use crate::failover::{pair, take_over};
use support::history::Outage;
use support::tasks::{
    assert_all_had_their_turns, kill_connections, run, until_done, Messages, TASKS,
};
use support::{Expect, Server};

/// Kills the primary once its replica has every effect that was answered, and makes the replica
/// take over. Returns the outage.
#[track_caller]
fn lose(primary: &mut Server, replica: &Server) -> Outage {
    let from = Instant::now();
    primary.call("CLIENT PAUSE 600000 WRITE").okay();
    replica.until_in_step(primary);
    primary.kill9();
    replica.call("REPLICAOF NO ONE").okay();
    Outage {
        from,
        to: Instant::now(),
    }
}

#[track_caller]
fn assert_goes_on_by_itself(messages: Messages) {
    let (first, mut second) = pair();
    let ports = [first.port(), second.port()];
    let (seen, outages) = run(messages, &ports, |done| {
        until_done(done, 100);
        kill_connections(&first);
        until_done(done, 250);
        let handed_over = take_over(&first, &second);
        until_done(done, 450);
        kill_connections(&second);
        until_done(done, 600);
        let lost = lose(&mut second, &first);
        [handed_over, lost]
    });
    assert_all_had_their_turns(&seen, &outages);
    assert!(seen.told() > TASKS * 97 / 100, "messages didn't come");
    assert!(
        seen.certain() > TASKS / 2,
        "the order of too few tasks is known"
    );
    // The tasks that still waited had to queue anew at the new primary, after each failover.
    assert!(seen.anew() > TASKS / 2, "the servers knew the places");
}

#[test]
fn a_thousand_tasks_over_one_connection_through_two_failovers() {
    assert_goes_on_by_itself(Messages::OnTheSameConnection);
}

#[test]
fn a_thousand_tasks_whose_messages_come_on_a_second_connection_through_two_failovers() {
    assert_goes_on_by_itself(Messages::OnASecondConnection);
}
