//! Child processes of the launcher.
//!
//! None of them may outlive it, however it ends. Each is started through `setpriv --pdeathsig`, so that the
//! kernel stops it with its parent; and a file names each one, so that the next start finds what a kernel
//! could not stop in time. A process is named by its id *and* its start time: ids come round again.
//!
//! The kernel counts a *thread* as the parent. So one thread, which lives as long as the launcher, starts all
//! of them.

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc;
use tokio::sync::{oneshot, watch};

/// A log that has grown beyond this is begun anew when its part is started.
const LOG_BYTES_MAX: u64 = 64 << 20;

/// What to run, and as whom.
#[derive(Clone, Debug)]
pub struct Program {
    pub path: PathBuf,
    pub args: Vec<OsString>,
    /// Secrets go here: arguments can be read by everybody on the machine.
    pub env: Vec<(String, String)>,
    pub dir: Option<PathBuf>,
    pub user: User,
    pub stop_signal: Signal,
}

impl Program {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Program {
            path: path.into(),
            args: Vec::new(),
            env: Vec::new(),
            dir: None,
            user: User::Ours,
            stop_signal: Signal::TERM,
        }
    }

    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// The command as it is given to the kernel: stops when its parent does, and is in a process group of its own, so that
    /// Ctrl-C in a terminal reaches the launcher alone.
    pub fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        let on_death = if self.stop_signal == Signal::INT { "INT" } else { "KILL" };
        command.args(["--pdeathsig", on_death]);
        command.args(self.user.setpriv_args());
        command.arg("--").arg(&self.path).args(&self.args);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command.stdin(Stdio::null()).process_group(0);
        command
    }
}

/// Whose process it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    Ours,
    /// Another user of the machine. `reach`: it may pass through directories that are closed to it, for an installation
    /// below a home directory that only its owner may enter.
    Other {
        name: String,
        reach: bool,
    },
}

impl User {
    fn setpriv_args(&self) -> Vec<String> {
        let User::Other { name, reach } = self else { return Vec::new() };
        let mut args = vec![format!("--reuid={name}"), format!("--regid={name}"), "--init-groups".to_owned()];
        if *reach {
            args.extend(["--inh-caps=+dac_override", "--ambient-caps=+dac_override"].map(String::from));
        }
        args
    }
}

/// One process, not to be mistaken for a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id {
    pub pid: u32,
    /// Clock ticks since boot, as in `/proc/PID/stat`.
    started: u64,
}

/// A line of `/proc/PID/stat`, as far as needed here.
#[derive(Clone, Copy, Debug)]
struct Stat {
    state: char,
    parent: u32,
    started: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name in brackets may hold anything, brackets and spaces too; what follows the last one is numbers.
fn parse_stat(line: &str) -> Option<Stat> {
    let (_, rest) = line.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some(Stat { state, parent, started })
}

impl Id {
    pub fn of(pid: u32) -> Option<Id> {
        Some(Id { pid, started: stat(pid)?.started })
    }

    fn stat(self) -> Option<Stat> {
        stat(self.pid).filter(|stat| stat.started == self.started)
    }

    pub fn is_alive(self) -> bool {
        self.stat().is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'))
    }

    /// Stopped by SIGSTOP, each of its threads: one that is in the middle of a write may take a moment longer.
    pub fn is_stopped(self) -> bool {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{}/task", self.pid)) else { return false };
        let mut states = tasks.flatten().filter_map(|task| {
            parse_stat(&std::fs::read_to_string(task.path().join("stat")).ok()?).map(|stat| stat.state)
        });
        self.stat().is_some() && states.all(|state| matches!(state, 'T' | 'Z' | 'X'))
    }

    pub fn parent(self) -> Option<Id> {
        Id::of(self.stat()?.parent)
    }

    /// This process and all that it started, parents first.
    pub fn tree(self) -> Vec<Id> {
        let mut tree = vec![self];
        let all = all_processes();
        let mut next = 0;
        while next < tree.len() {
            let parent = tree[next].pid;
            tree.extend(all.iter().filter(|(_, of)| *of == parent).map(|(id, _)| *id));
            next += 1;
        }
        tree
    }

    /// A process that is gone is not an error: whatever the signal was to bring about has come about.
    pub fn signal(self, signal: Signal) -> std::io::Result<()> {
        let Some(pid) = Pid::from_raw(self.pid as i32).filter(|_| self.is_alive()) else { return Ok(()) };
        match kill_process(pid, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub fn signal_tree(self, signal: Signal) -> std::io::Result<()> {
        self.tree().into_iter().try_for_each(|id| id.signal(signal))
    }

    pub fn save(self, path: &Path) -> std::io::Result<()> {
        std::fs::write(path, format!("{} {}\n", self.pid, self.started))
    }

    /// Of a file that [`Id::save`] wrote; anything else is nobody.
    pub fn load(path: &Path) -> Option<Id> {
        let text = std::fs::read_to_string(path).ok()?;
        let (pid, started) = text.trim().split_once(' ')?;
        Some(Id { pid: pid.parse().ok()?, started: started.parse().ok()? })
    }
}

fn all_processes() -> Vec<(Id, u32)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| stat(pid).map(|stat| (Id { pid, started: stat.started }, stat.parent))).collect()
}

/// A child that runs, or ran.
#[derive(Clone, Debug)]
pub struct Process {
    pub id: Id,
    ended: watch::Receiver<Option<ExitStatus>>,
}

impl Process {
    /// Starts it with its output appended to a log.
    pub async fn start(program: &Program, log: &Path, pid_file: &Path) -> anyhow::Result<Process> {
        let mut command = program.command();
        let output = open_log(log).with_context(|| format!("opening {}", log.display()))?;
        command.stdout(output.try_clone()?).stderr(output);
        let child = spawn(command).await.with_context(|| format!("starting {}", program.path.display()))?;
        let pid = child.id();
        let Some(id) = Id::of(pid) else { bail!("{} ended as it started", program.path.display()) };
        id.save(pid_file).with_context(|| format!("writing {}", pid_file.display()))?;
        Ok(Process { id, ended: reap(child)? })
    }

    pub fn exit_status(&self) -> Option<ExitStatus> {
        *self.ended.borrow()
    }

    pub async fn wait(&self) -> Option<ExitStatus> {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(status) => *status,
            // The thread that waits for the child is gone: there is nothing more to learn.
            Err(_) => None,
        }
    }
}

fn open_log(path: &Path) -> std::io::Result<File> {
    let too_long = std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > LOG_BYTES_MAX);
    if too_long {
        std::fs::rename(path, path.with_added_extension("old"))?;
    }
    File::options().append(true).create(true).open(path)
}

fn reap(mut child: Child) -> std::io::Result<watch::Receiver<Option<ExitStatus>>> {
    let (ended, receiver) = watch::channel(None);
    std::thread::Builder::new().name(format!("wait-{}", child.id())).spawn(move || {
        if let Ok(status) = child.wait() {
            ended.send_replace(Some(status));
        }
    })?;
    Ok(receiver)
}

type Job = (Command, oneshot::Sender<std::io::Result<Child>>);

/// Starts a child from the one thread that lives as long as this process.
async fn spawn(command: Command) -> std::io::Result<Child> {
    static STARTER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (jobs, queue) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, reply) in queue {
                // Whoever asked may have been cancelled; the child then stops with this process.
                let _ = reply.send(command.spawn());
            }
        });
        jobs
    });
    let (reply, answer) = oneshot::channel();
    starter.send((command, reply)).map_err(std::io::Error::other)?;
    answer.await.map_err(std::io::Error::other)?
}

/// The last lines of a log, for a person who wants to know why a part is gone.
pub fn tail(log: &Path, lines: usize) -> String {
    const BYTES: u64 = 16 << 10;
    let read = || -> std::io::Result<Vec<u8>> {
        use std::io::{Read, Seek, SeekFrom};
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(BYTES)))?;
        let mut bytes = Vec::new();
        file.take(BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = match read() {
        Ok(bytes) => bytes,
        Err(error) => return format!("  ({}: {error})", log.display()),
    };
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    if all.is_empty() {
        return "  (nothing was written)\n".to_owned();
    }
    all[all.len().saturating_sub(lines)..].iter().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::wait_until;
    use std::time::Duration;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_confuse() {
        let line = "7 (a) b (c) S 3 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        let stat = parse_stat(line).expect("a line of stat");
        assert_eq!((stat.state, stat.parent, stat.started), ('S', 3, 4242));
    }

    #[tokio::test]
    async fn a_tree_is_paused_resumed_and_killed() {
        let dir = tempfile::tempdir().expect("a directory");
        let program = Program::new("sh").args(["-c", "sleep 600 & wait"]);
        let (log, pid_file) = (dir.path().join("log"), dir.path().join("pid"));
        let process = Process::start(&program, &log, &pid_file).await.expect("sh starts");
        assert_eq!(Id::load(&pid_file), Some(process.id));
        let grown = || async { if process.id.tree().len() == 2 { Ok(()) } else { Err("no child yet") } };
        wait_until(Duration::from_secs(10), "the child of the shell", grown).await.expect("two processes");
        let tree = process.id.tree();

        process.id.signal_tree(Signal::STOP).expect("ours to stop");
        let stopped =
            || async { if tree.iter().all(|id| id.is_stopped()) { Ok(()) } else { Err("running") } };
        wait_until(Duration::from_secs(10), "stopped", stopped).await.expect("they stop");
        process.id.signal_tree(Signal::CONT).expect("ours to resume");
        process.id.signal_tree(Signal::KILL).expect("ours to kill");
        process.wait().await.expect("an exit status");
        let gone = || async { if tree.iter().any(|id| id.is_alive()) { Err("alive") } else { Ok(()) } };
        wait_until(Duration::from_secs(10), "gone", gone).await.expect("they go");
    }

    #[test]
    fn another_process_with_the_same_number_is_not_it() {
        let me = Id::of(std::process::id()).expect("this process");
        assert!(me.is_alive() && !Id { started: me.started + 1, ..me }.is_alive());
    }
}
