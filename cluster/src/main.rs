//! The launcher behind `./dev`.

use clap::{Args, Parser, Subcommand};
use cluster::installation::Fault;
use cluster::parts::{Options, PartName};
use cluster::ports::NODES_MAX;
use cluster::{bench, launcher, s3};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(name = "cluster", version, about = "Capstan on one machine")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
struct Var {
    /// The directory of the installation.
    #[arg(long, env = "CAPSTAN_VAR", default_value = "var")]
    var: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start everything and print how to use it; Ctrl-C stops it.
    Up {
        #[command(flatten)]
        var: Var,
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=i64::from(NODES_MAX)))]
        nodes: u16,
        /// Return when everything answers, and leave it running.
        #[arg(long)]
        detach: bool,
        /// Run apart from any terminal.
        #[arg(long, hide = true, conflicts_with = "detach")]
        background: bool,
        /// How long a copy's promise to its primary runs.
        #[arg(long, default_value_t = Options::default().promise_ms)]
        promise_ms: u32,
        /// How long a primary may be silent before it is suspected.
        #[arg(long, default_value_t = Options::default().suspect_ms)]
        suspect_ms: u32,
    },
    /// Stop it.
    Down {
        #[command(flatten)]
        var: Var,
    },
    /// Make a new account; prints one JSON object.
    Account {
        #[command(flatten)]
        var: Var,
        #[arg(long, default_value = "pro")]
        plan: String,
    },
    /// Break a part, or mend it; returns when the effect is in place.
    Fault {
        #[command(flatten)]
        var: Var,
        fault: Fault,
        /// node-N, etcd, postgres, control, console or s3.
        part: PartName,
    },
    /// Measure, on an installation of its own.
    Bench {
        #[command(flatten)]
        var: Var,
        #[command(flatten)]
        settings: bench::Settings,
    },
    /// Serve S3 from a directory.
    S3(s3::Settings),
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse().command).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Up { var, nodes, detach, background, promise_ms, suspect_ms } => {
            let options = Options { nodes, promise_ms, suspect_ms };
            if background {
                rustix::process::setsid()?;
            }
            if detach {
                launcher::up_detached(&var.var, &options).await
            } else {
                launcher::up(&var.var, options).await
            }
        }
        Command::Down { var } => launcher::down(&var.var).await,
        Command::Account { var, plan } => launcher::account(&var.var, &plan).await,
        Command::Fault { var, fault, part } => launcher::fault(&var.var, fault, part).await,
        Command::Bench { var, settings } => bench::run(&var.var, settings).await,
        Command::S3(settings) => s3::serve(settings).await,
    }
}
