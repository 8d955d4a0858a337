//! `overside completions` and `man`: what the command line can say, for shells and readers.

use crate::args::{Cli, Completions, Man, Topic};
use crate::output::{self, refused};
use anyhow::{Context, Result};
use clap::CommandFactory;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Prints a shell's script.
///
/// # Errors
/// Standard output is closed.
pub fn completions(args: &Completions) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut topics_completed(), "overside", &mut script);
    let mut out = std::io::stdout().lock();
    out.write_all(&script).and_then(|()| out.flush()).map_err(refused)?;
    Ok(())
}

/// The command line, whose `help` has the topics among its commands.
fn topics_completed() -> clap::Command {
    let mut command = Cli::command();
    // clap lists under `help` what it finds when it builds: the topics come after that.
    command.build();
    command.mut_subcommand("help", |help| {
        help.subcommands(Topic::ALL.map(|topic| topic.command().bin_name(format!("overside help {}", topic.name))))
    })
}

/// Writes the manual pages.
///
/// # Errors
/// The folder cannot be made or written.
pub fn pages(args: &Man) -> Result<()> {
    let folder = || format!("{}", args.dir.display());
    std::fs::create_dir_all(&args.dir).with_context(folder)?;
    let command = Cli::command().disable_help_subcommand(true);
    let count = count(&command) + Topic::ALL.len();
    clap_mangen::generate_to(command, &args.dir).with_context(folder)?;
    Topic::ALL.into_iter().try_for_each(|topic| write_topic(topic, &args.dir)).with_context(folder)?;
    output::line(&format!("{count} pages in {}; read them with man -l FILE", args.dir.display()))
}

/// A topic has no options: a page of its name and its text.
fn write_topic(topic: Topic, folder: &Path) -> std::io::Result<()> {
    let page = clap_mangen::Man::new(topic.command());
    let mut file = File::create(folder.join(page.get_filename()))?;
    page.render_title(&mut file)?;
    page.render_name_section(&mut file)?;
    page.render_description_section(&mut file)
}

/// One for the command, and those of its commands.
fn count(command: &clap::Command) -> usize {
    1 + command.get_subcommands().filter(|command| !command.is_hide_set()).map(count).sum::<usize>()
}
