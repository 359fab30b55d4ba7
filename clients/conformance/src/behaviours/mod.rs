//! The table of every client's behaviours, by the contract in docs/clients.md.

mod failures;
mod granting;
mod holding;
mod kinds;
mod leftovers;
mod margin;
mod observing;
mod options;
mod owning;
mod rights;
mod runtimes;
mod slow;
mod storm;
mod waiting;

use std::time::Duration;

use crate::rows;
use crate::table::{Ability, Behaviour};

/// The longest delay of an event in the best of some rounds. The best counts, because the machine
/// may be busy in a round.
const LATE: Duration = Duration::from_millis(500);

const ANYWHERE: &[Behaviour] = rows![Anywhere, [];
    granting::a_free_lock_is_got_at_once,
    granting::a_held_lock_is_refused_at_once,
    granting::fences_rise,
    granting::tokens_are_drawn,
    granting::each_acquire_draws_a_token,
    granting::what_the_server_refuses_is_told,
    waiting::a_wait_is_handed_the_lock_promptly,
    waiting::a_key_of_any_text_is_waited_for,
    waiting::a_wait_ends_in_time_and_leaves_nobody,
    waiting::the_wait_of_a_lock_is_its_limit,
    waiting::three_wait_and_are_served_in_order,
    waiting::twenty_of_one_process_all_get_it,
    waiting::a_waiter_that_died_is_forgotten_soon_after_its_limit,
    waiting::a_cancelled_wait_leaves_nothing,
    waiting::a_wait_cancelled_as_it_is_granted_leaves_nothing,
    waiting::a_wait_that_somebody_else_gave_up_is_cancelled_or_asked_again,
    waiting::a_wait_longer_than_its_keep_keeps_its_place,
    waiting::a_long_wait_for_a_session_keeps_its_place,
    holding::a_release_after_a_loss_spares_the_next_holder,
    holding::an_extension_sets_the_lease,
    holding::what_is_left_is_told,
    holding::a_session_ends_with_its_process,
    holding::a_lease_ends_after_its_process,
    holding::a_closed_driver_keeps_its_lock,
    holding::a_lock_can_be_used_again_after_a_loss,
    kinds::readers_share_and_a_writer_waits_for_all,
    kinds::a_limit_admits_as_many_permits,
    kinds::several_keys_are_got_all_or_none,
    kinds::no_increment_is_lost,
    owning::a_lock_that_is_not_held_cant_be_released,
    owning::a_lost_lock_is_released_once,
    owning::a_lock_is_refused_while_a_grant_of_it_holds,
    owning::the_fence_stays,
    owning::everything_is_released_at_once,
    owning::the_server_is_asked_who_owns_the_lock,
    owning::texts_dont_show_the_token,
    options::a_limit_alone_makes_a_semaphore,
    options::data_is_seen,
    options::a_lock_stays_for_its_least_time,
    options::a_lock_that_stays_is_refused_to_its_own_object,
    options::a_lock_that_was_waited_for_stays_for_its_least_time,
    options::a_session_stays_for_its_least_time,
    options::a_lost_lock_doesnt_stay_for_its_least_time,
    options::a_lease_that_is_not_renewed_is_as_long_as_asked,
    options::a_block_releases_and_has_its_fence,
    observing::waits_and_grants_are_observed,
    observing::ends_of_waits_are_observed,
    leftovers::many_calls_leave_nothing,
    failures::killed_connections_dont_lose_a_wait,
    failures::a_server_that_restarts_is_waited_at_again,
    failures::a_process_stopped_while_it_waits_doesnt_take_an_old_grant,
];

const ANYWHERE_IN_BACKGROUND: &[Behaviour] = rows![Anywhere, [Ability::Background];
    holding::a_lease_is_renewed_beyond_its_end,
    holding::a_lease_that_is_not_renewed_is_told_lost_in_time,
    holding::a_deleted_lock_is_told_lost_within_a_lease,
    holding::an_extension_that_is_refused_tells_of_the_loss,
    kinds::one_lost_key_of_several_is_told,
    options::the_longest_hold_ends_in_time,
    options::a_session_ends_after_its_longest_hold,
    owning::a_block_whose_lock_is_lost_says_so,
    failures::killed_connections_dont_lose_a_grant,
    failures::a_server_that_restarts_doesnt_lose_a_grant,
    failures::a_stopped_process_is_told_of_its_loss,
    margin::a_loss_is_told_before_the_next_grant,
    margin::a_last_write_comes_before_the_next_first,
];

const OF_THREADS: &[Behaviour] = rows![Anywhere, [Ability::Reentrant];
    granting::a_thread_acquires_its_lock_again,
];

const STANDALONE: &[Behaviour] = rows![Standalone, [];
    failures::a_server_that_was_a_replica_for_a_while_is_waited_at_again,
    failures::a_session_that_is_lost_before_its_tie_is_acquired_again,
    failures::a_session_whose_tie_gets_no_reply_is_acquired_again,
    options::replicas_acknowledge,
    options::too_few_replicas_are_told,
    options::options_hold_together,
    options::silent_replicas_are_told,
    observing::an_outage_that_its_caller_gets_isnt_reported,
    failures::a_release_goes_on_until_the_extended_lease_ends,
    rights::the_recommended_rights_are_enough,
    slow::replies_that_are_300_ms_late,
    slow::replies_that_are_150_ms_late,
    slow::what_is_left_counts_from_the_request,
    slow::a_grant_that_took_a_third_of_its_lease_isnt_held,
    slow::a_session_that_took_a_third_of_its_lease_isnt_held,
];

const STANDALONE_IN_BACKGROUND: &[Behaviour] = rows![Standalone, [Ability::Background];
    failures::a_server_that_was_a_replica_for_a_while_doesnt_lose_a_grant,
    storm::five_hundred_of_one_process_wait_shortly,
    storm::a_thousand_of_one_process_wait_shortly,
    storm::a_thousand_of_one_process_report_one_outage,
    holding::renewals_set_the_lease_of_the_extension,
    holding::renewals_set_the_lease_of_a_shorter_extension,
    observing::each_outage_is_reported,
    observing::refused_renewals_are_reported_once,
];

const BY_RUNTIMES: &[Behaviour] = rows![Standalone, [Ability::Runtimes];
    runtimes::bun_runs_the_library,
    runtimes::deno_runs_the_library,
];

const CLUSTER: &[Behaviour] = rows![Cluster, [];
    failures::a_slot_that_moves_is_followed,
    failures::a_slot_that_moves_keeps_its_waiters,
    failures::several_keys_whose_slot_moves_are_waited_for,
];

const CLUSTER_IN_BACKGROUND: &[Behaviour] = rows![Cluster, [Ability::Background];
    failures::a_slot_that_moves_doesnt_lose_a_grant,
];

/// Returns the rows.
pub fn rows() -> impl Iterator<Item = &'static Behaviour> {
    let parts = [
        ANYWHERE,
        ANYWHERE_IN_BACKGROUND,
        OF_THREADS,
        STANDALONE,
        STANDALONE_IN_BACKGROUND,
        BY_RUNTIMES,
        CLUSTER,
        CLUSTER_IN_BACKGROUND,
    ];
    parts.into_iter().flatten()
}
