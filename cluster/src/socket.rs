//! How `down`, `fault` and a start in the background reach the launcher that runs: a line of JSON each way, over a socket in
//! its directory.

use crate::installation::{Fault, Installation};
use crate::layout::Layout;
use crate::parts::PartName;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

const NAME: &str = "launcher.sock";
const LINE_BYTES_MAX: u64 = 4096;
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Longer than anything that the launcher waits for.
const ANSWER_WITHIN: Duration = Duration::from_secs(180);

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "do")]
pub enum Request {
    /// Does everything answer?
    Status,
    Stop,
    Fault {
        fault: Fault,
        part: String,
    },
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    pub up: bool,
    /// Why it could not be done.
    pub error: Option<String>,
}

/// A directory's socket, by a name that is short however deep the directory is: the kernel allows 108 bytes.
struct Address {
    _dir: File,
    path: PathBuf,
}

impl Address {
    fn of(layout: &Layout) -> std::io::Result<Address> {
        let dir = File::open(layout.root())?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/{NAME}", dir.as_raw_fd()));
        Ok(Address { _dir: dir, path })
    }
}

/// Serves for as long as the installation lives. A request to stop is passed on to `stop`.
pub fn serve(installation: Installation, stop: mpsc::Sender<()>) -> anyhow::Result<()> {
    let layout = installation.layout();
    match std::fs::remove_file(layout.root().join(NAME)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).context("the socket");
        }
        _ => {}
    }
    let address = Address::of(layout)?;
    let listener = UnixListener::bind(&address.path).context("listening in the installation's directory")?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(converse(stream, installation.clone(), stop.clone()));
                }
                Err(error) => {
                    eprintln!("the launcher's socket: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    Ok(())
}

async fn converse(stream: UnixStream, installation: Installation, stop: mpsc::Sender<()>) {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    let mut reader = BufReader::new(reader.take(LINE_BYTES_MAX));
    let read = reader.read_line(&mut line);
    let done = match tokio::time::timeout(Duration::from_secs(5), read).await {
        Ok(Ok(_)) => carry_out(&line, &installation, &stop).await,
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(anyhow::anyhow!("no request within 5 s")),
    };
    let answer = Answer { up: installation.is_up(), error: done.err().map(|error| format!("{error:#}")) };
    let mut bytes = serde_json::to_vec(&answer).expect("a flag and a text have a JSON form");
    bytes.push(b'\n');
    // Whoever asked may be gone; what they asked for is done all the same.
    let _ = writer.write_all(&bytes).await;
}

async fn carry_out(line: &str, installation: &Installation, stop: &mpsc::Sender<()>) -> anyhow::Result<()> {
    match serde_json::from_str(line).context("the request")? {
        Request::Status => Ok(()),
        Request::Stop => stop.send(()).await.context("stopping"),
        Request::Fault { fault, part } => {
            let part: PartName = part.parse()?;
            installation.fault(fault, part).await
        }
    }
}

/// Asks the launcher of this directory; its refusal is an error.
pub async fn ask(layout: &Layout, request: &Request) -> anyhow::Result<Answer> {
    let address = Address::of(layout)?;
    let stream = UnixStream::connect(&address.path).await;
    let mut stream = stream.with_context(|| format!("nothing is up in {}", layout.root().display()))?;
    let mut bytes = serde_json::to_vec(request)?;
    bytes.push(b'\n');
    stream.write_all(&bytes).await?;
    let mut line = String::new();
    let mut reader = BufReader::new(stream.take(ANSWER_BYTES_MAX));
    let read = tokio::time::timeout(ANSWER_WITHIN, reader.read_line(&mut line)).await;
    read.context("the launcher does not answer")?.context("reading the launcher's answer")?;
    let answer: Answer = serde_json::from_str(&line).context("the launcher ended before it answered")?;
    match answer.error {
        Some(error) => bail!("{error}"),
        None => Ok(answer),
    }
}
