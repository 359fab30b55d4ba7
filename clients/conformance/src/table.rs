//! A row of the table of behaviours.

use crate::world::World;

/// The servers on which a behaviour can be shown.
pub enum Where {
    /// A single server, and a cluster.
    Anywhere,
    Standalone,
    Cluster,
    Sentinel,
}

/// An ability that a client may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ability {
    /// Renewing leases and reporting losses while the program does something else.
    Background,
    /// Calls that a cancellation ends while they connect or wait for a reply. The others end with their
    /// attempt.
    Interruption,
    /// Holds of a thread that are counted in the process.
    Reentrant,
    /// Running by Bun and Deno.
    Runtimes,
}

/// A behaviour of every client with these abilities.
pub struct Behaviour {
    pub name: &'static str,
    pub place: Where,
    pub needs: &'static [Ability],
    pub run: fn(&mut World),
}

/// Makes rows of the table, which have the names of their functions.
#[macro_export]
macro_rules! rows {
    ($place:ident, $needs:expr; $($module:ident::$function:ident),+ $(,)?) => {
        &[$($crate::table::Behaviour {
            name: stringify!($function),
            place: $crate::table::Where::$place,
            needs: &$needs,
            run: $module::$function,
        }),+]
    };
}
