//! Tests of the documentation: its examples, tables, links and statements.
//!
//! - `pages`: links, examples and tables of all pages
//! - `command_pages`: the pages of the commands
//! - `migrate`: docs/migrate/
//! - `monitoring_files`: dashboards, alerts and the pages they lead to
//! - `cron_once`: examples/cron_once.sh
//! - `deploy`: docs/operate/deploy.md and the figures of docs/operate/sizing.md
//! - `flash_sale`: examples/flash_sale.rs

mod command_pages;
mod cron_once;
mod deploy;
mod flash_sale;
mod migrate;
mod monitoring_files;
mod pages;
