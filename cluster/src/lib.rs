//! The whole system on one machine: what `./dev` calls, and what the end-to-end tests stand on.
//!
//! Nothing is mocked here: the binaries of the product, a private PostgreSQL, a private etcd and an S3 server
//! run as child processes, and everything in this crate speaks to them through their public interfaces. No
//! product logic lives here, and no other crate depends on this one.
//!
//! * [`layout`]: where an installation keeps what, under `var/`
//! * [`state`]: what it must find again at its next start (ports, secrets, the first account)
//! * [`ports`], [`pki`]: addresses and certificates
//! * [`process`]: child processes, which do not outlive their launcher
//! * [`s3`]: the S3 server
//! * [`parts`]: how each part is started, and how one knows that it answers
//! * [`installation`]: all of them together: start, faults, stop
//! * [`launcher`]: the commands
//! * [`socket`]: how `down` and `fault` reach the running launcher
//! * [`console`], [`api`]: clients of the console's API and of the data plane's
//! * [`dev_file`], [`greeting`]: what a program and what a person is told
//! * [`harness`]: a small installation for a test
//! * [`bench`]: how fast it is

pub mod api;
pub mod bench;
pub mod console;
pub mod dev_file;
pub mod greeting;
pub mod harness;
pub mod installation;
pub mod launcher;
pub mod layout;
pub mod parts;
pub mod pki;
pub mod ports;
pub mod process;
pub mod random;
pub mod s3;
pub mod socket;
pub mod state;
pub mod wait;
