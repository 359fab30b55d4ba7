//! The check that the module's state is used only in calls of the server.

use std::panic::catch_unwind;
use std::thread;

#[path = "../../src/state/entered.rs"]
mod module_entered;

use module_entered::Entered;

fn is_refused() -> bool {
    catch_unwind(module_entered::check).is_err()
}

fn on_another_thread(ask: fn() -> bool) -> bool {
    thread::spawn(ask).join().expect("an answer")
}

#[test]
fn the_state_is_refused_to_a_thread_outside_of_a_call() {
    assert!(is_refused());
    // SAFETY: no server has a lock here. This thread drops the value.
    let outer = unsafe { Entered::new() };
    // SAFETY: as above.
    drop(unsafe { Entered::new() });
    assert!(!is_refused());
    assert!(on_another_thread(is_refused));
    drop(outer);
    assert!(is_refused());
}

#[test]
fn a_crash_is_reported_on_the_main_thread_alone() {
    module_entered::record_main_thread();
    let reports = module_entered::is_main_thread_alone;
    assert!(reports());
    assert!(!on_another_thread(reports));
}
