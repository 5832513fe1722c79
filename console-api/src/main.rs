//! `console-api`: reads its settings, connects to the control plane, serves until it is told to stop.

use anyhow::Context;
use clap::Parser;
use console_api::attempts::Attempts;
use console_api::control::{Control, Tls};
use console_api::sessions::{self, Sessions};
use console_api::settings::Settings;
use console_api::{App, http, serve};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let settings = Settings::parse();
    let app = app(&settings)?;
    let listener =
        TcpListener::bind(settings.http).await.with_context(|| format!("listening on {}", settings.http))?;
    tracing::info!(http = %listener.local_addr()?, control = settings.control, "the console's API is up");

    let (stop, stopped) = watch::channel(false);
    let poll = tokio::spawn({
        let app = app.clone();
        async move { sessions::poll(&app.sessions, &app.control).await }
    });
    let serving = tokio::spawn(serve::serve(listener, http::router(app), stopped));
    asked_to_stop().await?;
    tracing::info!("stopping");
    stop.send_replace(true);
    serving.await?;
    poll.abort();
    Ok(())
}

fn app(settings: &Settings) -> anyhow::Result<App> {
    let read =
        |path: &Path| std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()));
    let tls = Tls {
        ca: read(&settings.ca)?,
        cert: read(&settings.cert)?,
        key: read(&settings.key)?,
        name: settings.control_name.clone(),
    };
    let control = Control::new(settings.control.clone(), tls)
        .context("the control plane's address or the certificates")?;
    Ok(App {
        control,
        sessions: Arc::new(Sessions::default()),
        attempts: Arc::new(Attempts::new(settings.attempts_per_address, settings.attempts_per_email)),
        origin: settings.origin.as_deref().map(Arc::from),
    })
}

async fn asked_to_stop() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
