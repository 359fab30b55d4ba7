//! A program whose tasks all wait over one connection, while the servers change their roles: no place
//! is known to the new primary, and each task's one command takes a new one.

use std::time::Instant;

use crate::failover::{pair, take_over};
use crate::history::Outage;
use crate::support::{Expect, Server};
use crate::tasks::{
    assert_all_had_their_turns, kill_connections, run, until_done, Messages, TASKS,
};

/// Kills the primary once its replica has all that it answered, and has that take over.
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
        "too little is known of the order"
    );
    // Those who waited then had to queue at two other servers after the first one.
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
