//! A program that writes the module's description of its commands into their pages.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;

/// Writes the module's description of its commands into their pages, and prints the stale pages.
#[derive(Parser)]
#[command(name = "pages")]
struct Cli {
    /// The module
    #[arg(long, env = "REDIS_LOCK_MODULE")]
    module: PathBuf,
    /// The directory of documents
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
