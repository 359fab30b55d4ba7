//! The commands, one file per verb, and their registration.

mod acquire;
mod apply;
mod arguments;
mod cancel;
mod check;
mod command;
mod extend;
mod help;
mod hot;
mod info;
mod queue;
mod release;
mod spec;
mod wait;

use redis_module::Context;

use command::{register as add, register_single_and_multi as add_both};

/// Registers all commands.
pub fn register(ctx: &Context) -> Result<(), String> {
    spec::add_own_category(ctx);
    add_both::<acquire::Acquire>(ctx)?;
    add_both::<wait::Wait>(ctx)?;
    add_both::<queue::Queue>(ctx)?;
    add::<cancel::Cancel>(ctx)?;
    add_both::<extend::Extend>(ctx)?;
    add_both::<release::Release>(ctx)?;
    add::<check::Check>(ctx)?;
    add::<info::Info>(ctx)?;
    add::<hot::Hot>(ctx)?;
    add::<help::Help>(ctx)?;
    add::<apply::Apply>(ctx)
}
