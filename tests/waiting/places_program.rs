//! A program whose tasks all wait over one connection and lose it again and again.

use support::tasks::{
    assert_all_had_their_turns, cancel, kill_connections, run, until_done, Messages, TASKS,
};
use support::Server;

/// The tasks whose places another client cancels while they wait.
const CANCELLED: std::ops::Range<usize> = 500..510;

#[track_caller]
fn assert_goes_on_by_itself(messages: Messages) {
    let server = Server::start();
    let (seen, ()) = run(messages, &[server.port()], |done| {
        // The connections are killed while the tasks take their places, and while they wait.
        until_done(done, 1);
        kill_connections(&server);
        until_done(done, 10);
        cancel(&server, CANCELLED);
        for count in [200, 400, 600] {
            until_done(done, count);
            kill_connections(&server);
        }
    });
    assert_all_had_their_turns(&seen, &[]);
    assert!(seen.told() > TASKS * 97 / 100, "messages didn't come");
    assert!(
        seen.certain() > TASKS / 2,
        "too little is known of the order"
    );
    for number in CANCELLED {
        assert!(seen.queued_anew(number), "task {number}");
    }
}

#[test]
fn a_thousand_tasks_over_one_connection_that_is_killed_again_and_again() {
    assert_goes_on_by_itself(Messages::OnTheSameConnection);
}

#[test]
fn a_thousand_tasks_whose_messages_come_on_a_second_connection() {
    assert_goes_on_by_itself(Messages::OnASecondConnection);
}
