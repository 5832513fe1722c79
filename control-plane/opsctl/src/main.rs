//! The operators' command line, over the control plane's ops service.
//!
//! * [`settings`]: where the control plane is and who asks; `--dev var/dev.json` says it all for a local one
//! * [`connection`]: mTLS, and a token with each call
//! * [`render`]: tables for people, JSON for programs
//! * [`failure`]: what went wrong, what to do next, and the exit code
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no answer, 4 not permitted, 5 no such thing, 6 not possible now.

mod connection;
mod failure;
mod render;
mod settings;

use clap::{Parser, Subcommand};
use proto::ops as pb;
use std::process::ExitCode;

use failure::Failure;
use settings::Settings;

/// Spools of one call; all are listed, page by page.
const PAGE: u32 = 500;

#[derive(Parser)]
#[command(name = "opsctl", version, about = "Looks at nodes and spools, and moves primaries")]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
    /// One JSON document on stdout instead of a table.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Data-plane nodes
    #[command(subcommand)]
    Nodes(Nodes),
    /// Spools, their copies and primaries
    #[command(subcommand)]
    Spools(Spools),
}

#[derive(Subcommand)]
enum Nodes {
    /// All nodes that are alive or have copies
    List,
}

#[derive(Subcommand)]
enum Spools {
    /// All spools, or those with a copy on one node
    List {
        #[arg(long)]
        node: Option<String>,
    },
    /// One spool and each of its copies
    Show { id: String },
    /// Hand the primary over to another copy, without losing a write
    MovePrimary {
        id: String,
        /// The node to move to; without it, whichever copy is furthest.
        #[arg(long, value_name = "NODE")]
        to: Option<String>,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments).await {
        Ok(output) => match print(&output) {
            Ok(()) => ExitCode::SUCCESS,
            // Whoever read it went away.
            Err(_) => ExitCode::FAILURE,
        },
        Err(failure) => {
            eprintln!("opsctl: {failure}");
            if let Some(next) = failure.next() {
                eprintln!("  {next}");
            }
            failure.exit_code()
        }
    }
}

fn print(output: &str) -> std::io::Result<()> {
    use std::io::Write;
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(output.as_bytes())?;
    stdout.flush()
}

async fn run(arguments: &Arguments) -> Result<String, Failure> {
    let json = arguments.json;
    let mut ops = connection::open(&arguments.settings)?;
    match &arguments.command {
        Command::Nodes(Nodes::List) => {
            let nodes = ops.list_nodes(pb::ListNodesRequest {}).await?.into_inner().nodes;
            Ok(if json { render::json(&render::nodes_json(&nodes)) } else { render::nodes(&nodes) })
        }
        Command::Spools(Spools::List { node }) => {
            let spools = all_spools(&mut ops, node.as_deref().unwrap_or_default()).await?;
            Ok(if json { render::json(&render::spools_json(&spools)) } else { render::spools(&spools) })
        }
        Command::Spools(Spools::Show { id }) => {
            let spool = ops.get_spool(pb::GetSpoolRequest { id: id.clone() }).await?.into_inner();
            Ok(if json { render::json(&render::spool_json(&spool)) } else { render::spool(&spool) })
        }
        Command::Spools(Spools::MovePrimary { id, to }) => {
            let target_node = to.clone().unwrap_or_default();
            let request = pb::MovePrimaryRequest { id: id.clone(), target_node };
            let moved = ops.move_primary(request).await?.into_inner();
            Ok(if json { render::json(&render::moved_json(&moved)) } else { render::moved(&moved) })
        }
    }
}

async fn all_spools(ops: &mut connection::Ops, node: &str) -> Result<Vec<pb::Spool>, Failure> {
    let mut spools: Vec<pb::Spool> = Vec::new();
    loop {
        let after_id = spools.last().map(|spool| spool.id.clone()).unwrap_or_default();
        let request = pb::ListSpoolsRequest { node: node.to_owned(), limit: PAGE, after_id };
        let page = ops.list_spools(request).await?.into_inner().spools;
        let last = page.len() < PAGE as usize;
        spools.extend(page);
        if last {
            return Ok(spools);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
        let parse = |line: &str| Arguments::try_parse_from(line.split(' '));
        assert!(parse("opsctl --dev var/dev.json spools move-primary 7 --to node-2 --json").is_ok());
        assert!(parse("opsctl spools list --node node-1 --control https://127.0.0.1:1").is_ok());
        assert!(parse("opsctl spools move-primary").is_err());
        assert!(parse("opsctl --dev d --control https://127.0.0.1:1 nodes list").is_err());
    }
}
