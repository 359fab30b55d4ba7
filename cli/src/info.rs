//! `redis-lock info`.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use anyhow::Result;

use crate::arguments::{Info, Server};
use crate::json;
use crate::lock::{Client, Holder, Lock, Text, Waiter};
use crate::nodes::Nodes;
use crate::output;

/// The exit code if the lock is free.
const FREE: u8 = 1;

pub fn show(server: &Server, options: &Info) -> Result<ExitCode> {
    let key = options.lock.key.as_bytes();
    let lock = Nodes::connect(server)?.lock(key, options.lock.waiters)?;
    let text = match options.json {
        true => json::of_lock(key, lock.as_ref())?,
        false => text_or_free(key, lock.as_ref()),
    };
    output::print(&text)?;
    Ok(lock.map_or(ExitCode::from(FREE), |_| ExitCode::SUCCESS))
}

/// Returns a lock as lines of text, or one line if it has no holder and no waiter.
pub fn text_or_free(key: &[u8], lock: Option<&Lock>) -> String {
    let free = || format!("{} is free\n", output::word(key));
    lock.map_or_else(free, |lock| text(key, lock))
}

/// Returns a lock as lines of text: the lock, its holders, and its queue.
pub fn text(key: &[u8], lock: &Lock) -> String {
    let mut text = format!("{}  {}", output::word(key), lock.mode);
    if let (taken, Some(limit)) = lock.permits() {
        push(&mut text, format_args!(", {taken} of {limit} permits"));
    }
    text.push('\n');
    for holder in &lock.holders {
        push(&mut text, format_args!("  held by {}\n", of_holder(holder)));
    }
    for (index, waiter) in lock.queue.iter().enumerate() {
        push(
            &mut text,
            format_args!("  {}. {}\n", index + 1, of_waiter(waiter)),
        );
    }
    let more = lock.waiters.saturating_sub(lock.queue.len() as u64);
    if more > 0 {
        push(&mut text, format_args!("  and {more} more\n"));
    }
    text
}

fn of_holder(holder: &Holder) -> String {
    let mut text = format!(
        "{}{} for {}, fence {}, lease {}",
        of_token(holder.token.as_deref()),
        of_client(holder.client.as_ref()),
        output::span(holder.held_ms),
        holder.fence,
        output::span(holder.lease_ms),
    );
    if holder.is_session {
        text.push_str(", session");
    }
    if holder.permits > 1 {
        push(&mut text, format_args!(", {} permits", holder.permits));
    }
    if holder.holds > 1 {
        push(&mut text, format_args!(", {} holds", holder.holds));
    }
    push_data(&mut text, holder.data.as_ref());
    text
}

fn of_waiter(waiter: &Waiter) -> String {
    let mut text = format!(
        "{}{} waits {} for {}",
        of_token(waiter.token.as_deref()),
        of_client(waiter.client.as_ref()),
        waiter.mode,
        output::span(waiter.waiting_ms),
    );
    if waiter.kind != "blocked" {
        push(&mut text, format_args!(", {}", waiter.kind));
    }
    if waiter.permits > 1 {
        push(&mut text, format_args!(", {} permits", waiter.permits));
    }
    if waiter.timeout_ms > 0 {
        push(
            &mut text,
            format_args!(", {} left", output::span(waiter.timeout_ms)),
        );
    }
    if waiter.keep_ms > 0 {
        push(
            &mut text,
            format_args!(", kept for {}", output::span(waiter.keep_ms)),
        );
    }
    if waiter.keys.len() > 1 {
        let keys: Vec<String> = waiter.keys.iter().map(|key| output::word(key)).collect();
        push(&mut text, format_args!(", for all of {}", keys.join(" ")));
    }
    push_data(&mut text, waiter.data.as_ref());
    text
}

fn push_data(text: &mut String, data: Option<&Text>) {
    if let Some(data) = data.filter(|data| !data.is_empty()) {
        push(text, format_args!(", data {}", output::word(data)));
    }
}

fn of_token(token: Option<&[u8]>) -> String {
    token.map_or_else(|| "somebody".to_owned(), output::word)
}

fn of_client(client: Option<&Client>) -> String {
    match client {
        None => String::new(),
        Some(client) if client.name.is_empty() => format!(" at {}", output::word(&client.address)),
        Some(client) => format!(
            " ({} at {})",
            output::word(&client.name),
            output::word(&client.address)
        ),
    }
}

fn push(text: &mut String, more: std::fmt::Arguments<'_>) {
    // Writing to a string can't fail.
    let _ = text.write_fmt(more);
}
