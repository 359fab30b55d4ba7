//! Bad days, and what each call gives on them: the table of docs/reference/bad-days.md.

mod arguments;
mod cells;
pub mod faults;
mod late;
mod outages;
mod paused;
mod refusals;
mod sentinel;

pub use cells::PATIENT_MS;
pub use faults::{as_user, change_user, PASSWORD};

use crate::table::{Ability, Behaviour, Where};
use crate::world::World;

/// A bad day, and the rows of the suite that play it.
struct BadDay {
    /// The first cell of the day's line in the table of the page.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "only the test of the page reads it")
    )]
    name: &'static str,
    rows: &'static [Behaviour],
}

const fn row(place: Where, name: &'static str, run: fn(&mut World)) -> Behaviour {
    Behaviour {
        name,
        place,
        needs: &[],
        run,
    }
}

const fn in_background(place: Where, name: &'static str, run: fn(&mut World)) -> Behaviour {
    Behaviour {
        needs: &[Ability::Background],
        ..row(place, name, run)
    }
}

use Where::{Anywhere, Cluster, Sentinel, Standalone};

const BAD_DAYS: &[BadDay] = &[
    BadDay {
        name: "no server at the address",
        rows: &[
            row(Anywhere, "no_server_before", |world| {
                outages::before(world, "no_server_before", &faults::KILLED);
            }),
            row(Anywhere, "no_server_during", |world| {
                outages::during(world, "no_server_during", &faults::KILLED);
            }),
        ],
    },
    BadDay {
        name: "the server hangs",
        rows: &[
            row(Anywhere, "stopped_before", |world| {
                outages::before(world, "stopped_before", &faults::STOPPED);
            }),
            row(Anywhere, "stopped_during", |world| {
                outages::during(world, "stopped_during", &faults::STOPPED);
            }),
        ],
    },
    BadDay {
        name: "the server's machine vanishes",
        rows: &[
            row(Anywhere, "vanished_before", |world| {
                outages::before(world, "vanished_before", &faults::VANISHED);
            }),
            row(Anywhere, "vanished_during", |world| {
                outages::during(world, "vanished_during", &faults::VANISHED);
            }),
            row(Standalone, "late_acquires", late::late_acquires),
            row(
                Standalone,
                "late_acquires_of_old_connections",
                late::late_acquires_of_old_connections,
            ),
            row(
                Standalone,
                "a_late_acquire_after_the_release",
                late::a_late_acquire_after_the_release,
            ),
            Behaviour {
                needs: &[Ability::Background],
                ..row(
                    Standalone,
                    "a_late_acquire_after_an_extension",
                    late::a_late_acquire_after_an_extension,
                )
            },
            row(
                Standalone,
                "a_late_acquire_after_an_extension_and_before_an_outage",
                late::a_late_acquire_after_an_extension_and_before_an_outage,
            ),
            row(Standalone, "a_late_wait", late::a_late_wait),
            row(Standalone, "a_late_release", late::a_late_release),
            row(
                Standalone,
                "a_late_release_of_an_old_connection",
                late::a_late_release_of_an_old_connection,
            ),
            row(
                Standalone,
                "a_release_that_never_came_and_its_repetition",
                late::a_release_that_never_came_and_its_repetition,
            ),
            row(Standalone, "a_late_extension", late::a_late_extension),
            row(
                Anywhere,
                "a_silent_death_of_a_wait",
                late::a_silent_death_of_a_wait,
            ),
        ],
    },
    BadDay {
        name: "new connections hang",
        rows: &[row(Standalone, "hanging_before", |world| {
            outages::before(world, "hanging_before", &faults::HANGING);
        })],
    },
    BadDay {
        name: "connections are reset",
        rows: &[
            row(Standalone, "reset_before", |world| {
                outages::before(world, "reset_before", &faults::RESET);
            }),
            row(Standalone, "reset_during", |world| {
                outages::during(world, "reset_during", &faults::RESET);
            }),
        ],
    },
    BadDay {
        name: "the server restarts within the command timeout",
        rows: &[row(Anywhere, "restarted", outages::restarted)],
    },
    BadDay {
        name: "the server loads its data: `LOADING`",
        rows: &[
            row(Standalone, "loading_before", |world| {
                outages::before(world, "loading_before", &faults::LOADING);
            }),
            row(Standalone, "loading_during", |world| {
                outages::during(world, "loading_during", &faults::LOADING);
            }),
        ],
    },
    BadDay {
        name: "the server is a replica: `READONLY`",
        rows: &[
            row(Standalone, "read_only_before", |world| {
                outages::before(world, "read_only_before", &faults::READ_ONLY);
            }),
            row(Standalone, "read_only_during", |world| {
                outages::during(world, "read_only_during", &faults::READ_ONLY);
            }),
        ],
    },
    BadDay {
        name: "a replica without its primary: `MASTERDOWN`",
        rows: &[row(Standalone, "without_primary_before", |world| {
            outages::before(world, "without_primary_before", &faults::WITHOUT_PRIMARY);
        })],
    },
    BadDay {
        name: "no node serves the slot: `CLUSTERDOWN`",
        rows: &[
            row(Cluster, "cluster_down_before", |world| {
                outages::before(world, "cluster_down_before", &faults::CLUSTER_DOWN);
            }),
            row(Cluster, "cluster_down_during", |world| {
                outages::during(world, "cluster_down_during", &faults::CLUSTER_DOWN);
            }),
        ],
    },
    BadDay {
        name: "the server has no memory left: `OOM`",
        rows: &[
            row(Standalone, "out_of_memory_before", |world| {
                outages::before(world, "out_of_memory_before", &faults::OUT_OF_MEMORY);
            }),
            row(
                Standalone,
                "out_of_memory_during",
                outages::out_of_memory_during,
            ),
        ],
    },
    BadDay {
        name: "the server can't save its data: `MISCONF`",
        rows: &[
            row(Standalone, "cant_save_before", |world| {
                outages::before(world, "cant_save_before", &faults::CANT_SAVE);
            }),
            row(Standalone, "cant_save_during", |world| {
                outages::during(world, "cant_save_during", &faults::CANT_SAVE);
            }),
        ],
    },
    BadDay {
        name: "the server has too few replicas to write: `NOREPLICAS`",
        rows: &[
            row(Standalone, "too_few_replicas_before", |world| {
                outages::before(world, "too_few_replicas_before", &faults::TOO_FEW_REPLICAS);
            }),
            row(Standalone, "too_few_replicas_during", |world| {
                outages::during(world, "too_few_replicas_during", &faults::TOO_FEW_REPLICAS);
            }),
        ],
    },
    BadDay {
        name: "a script runs without end: `BUSY`",
        rows: &[
            row(Standalone, "busy_before", |world| {
                outages::before(world, "busy_before", &faults::BUSY);
            }),
            row(Standalone, "busy_during", |world| {
                outages::during(world, "busy_during", &faults::BUSY);
            }),
        ],
    },
    BadDay {
        name: "the server takes no more connections",
        rows: &[row(Standalone, "full_before", |world| {
            outages::before(world, "full_before", &faults::FULL);
        })],
    },
    BadDay {
        name: "another node takes over the slot of a dead one",
        rows: &[row(Cluster, "taken_over", outages::taken_over)],
    },
    BadDay {
        name: "a superseded primary still answers",
        rows: &[
            row(Sentinel, "superseded", sentinel::superseded),
            in_background(
                Sentinel,
                "superseded_with_a_grant",
                sentinel::superseded_with_a_grant,
            ),
            row(
                Sentinel,
                "found_by_its_sentinel",
                sentinel::found_by_its_sentinel,
            ),
            row(Sentinel, "planned_failover", sentinel::planned_failover),
        ],
    },
    BadDay {
        name: "the module isn't loaded",
        rows: &[row(Standalone, "module_missing", refusals::module_missing)],
    },
    BadDay {
        name: "a wrong password, or none",
        rows: &[
            row(Anywhere, "wrong_password", refusals::wrong_password),
            row(Standalone, "no_password", refusals::no_password),
        ],
    },
    BadDay {
        name: "no right to the command: `NOPERM`",
        rows: &[
            row(
                Anywhere,
                "no_right_to_acquire",
                refusals::no_right_to_acquire,
            ),
            row(
                Standalone,
                "no_right_to_release",
                refusals::no_right_to_release,
            ),
            in_background(
                Standalone,
                "no_right_to_release_a_session",
                refusals::no_right_to_release_a_session,
            ),
            in_background(
                Standalone,
                "no_right_to_extend",
                refusals::no_right_to_extend,
            ),
        ],
    },
    BadDay {
        name: "no right to the key or to the channel: `NOPERM`",
        rows: &[
            row(
                Standalone,
                "no_right_to_the_key",
                refusals::no_right_to_the_key,
            ),
            row(
                Standalone,
                "no_right_to_the_channel",
                refusals::no_right_to_the_channel,
            ),
        ],
    },
    BadDay {
        name: "the key has another type: `WRONGTYPE`",
        rows: &[row(Anywhere, "another_type", refusals::another_type)],
    },
    BadDay {
        name: "wrong arguments",
        rows: &[
            row(Standalone, "wrong_options", arguments::wrong_options),
            row(Standalone, "wrong_limits", arguments::wrong_limits),
            row(Standalone, "wrong_extensions", arguments::wrong_extensions),
            row(
                Standalone,
                "wrong_command_timeouts",
                arguments::wrong_command_timeouts,
            ),
        ],
    },
    BadDay {
        name: "your process was paused",
        rows: &[
            row(Anywhere, "paused", paused::paused),
            row(Standalone, "paused_in_a_wait", paused::paused_in_a_wait),
        ],
    },
];

/// Returns the rows of all bad days.
pub fn rows() -> impl Iterator<Item = &'static Behaviour> {
    BAD_DAYS.iter().flat_map(|day| day.rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../../docs/reference/bad-days.md");

    /// Returns the first cells of the table's lines.
    fn days_of_the_page() -> Vec<&'static str> {
        let lines = PAGE
            .lines()
            .skip_while(|line| !line.starts_with("| bad day |"));
        let lines = lines.skip(2).take_while(|line| line.starts_with('|'));
        lines
            .filter_map(|line| Some(line.split('|').nth(1)?.trim()))
            .collect()
    }

    #[test]
    fn the_page_and_the_suite_have_the_same_bad_days() {
        let days: Vec<&str> = BAD_DAYS.iter().map(|day| day.name).collect();
        assert_eq!(days_of_the_page(), days);
    }

    #[test]
    fn each_bad_day_is_played() {
        assert!(BAD_DAYS.iter().all(|day| !day.rows.is_empty()));
    }
}
