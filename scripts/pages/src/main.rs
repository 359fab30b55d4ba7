//! Writes into the pages of the commands what the module tells of them.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;

/// Writes what the module tells of its commands into their pages, and names those that were stale.
#[derive(Parser)]
#[command(name = "pages")]
struct Cli {
    /// The module
    #[arg(long, env = "REDIS_LOCK_MODULE")]
    module: PathBuf,
    /// The folder of documents
    #[arg(long, default_value = "docs")]
    docs: PathBuf,
    /// The server program that loads the module
    server: PathBuf,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let commands = redis_lock_pages::commands(&cli.server, &cli.module)?;
    for (path, text) in redis_lock_pages::stale(&cli.docs, &commands)? {
        fs::write(&path, text)?;
        println!("{}", path.display());
    }
    Ok(())
}
