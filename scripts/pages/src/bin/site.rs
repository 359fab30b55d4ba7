//! A program that writes the source folder of the site: `make site`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;

/// Writes a clone's Markdown into a folder, in the form that mdBook reads.
#[derive(Parser)]
#[command(name = "site")]
struct Cli {
    /// The clone
    clone: PathBuf,
    /// The source folder of the book, which is emptied first
    folder: PathBuf,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    redis_lock_pages::site::assemble(&cli.clone, &cli.folder)
}
