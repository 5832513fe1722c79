//! Certificates and signing keys of one installation, made once and kept in `var/pki`:
//!
//! | file | what |
//! |---|---|
//! | `ca.pem`, `ca.key` | the authority that signs everything below |
//! | `<part>.pem`, `<part>.key` | `node-N`, `control-plane`, `console-api`, `operator`; the name in the certificate is the part's |
//! | `session.key` | private Ed25519 key that sessions of the console are signed with |
//! | `operator-token.key`, `operator-token.pub` | private and public Ed25519 key of operators' tokens |

use crate::random;
use anyhow::Context;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug)]
pub struct Pki {
    dir: PathBuf,
}

/// The files of one part.
#[derive(Clone, Debug)]
pub struct Identity {
    pub ca: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Pki {
    /// Makes what is missing; what is there stays.
    pub fn create(dir: &Path, nodes: u16) -> anyhow::Result<Pki> {
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let pki = Pki { dir: dir.to_owned() };
        let authority = pki.authority().context("the certificate authority")?;
        let names = (1..=nodes).map(|n| format!("node-{n}"));
        let others = ["control-plane", "console-api", "operator"].map(String::from);
        for name in names.chain(others) {
            pki.issue(&authority, &name).with_context(|| format!("the certificate of {name}"))?;
        }
        signing_key(&pki.session_key()).context("the session key")?;
        let operator = signing_key(&pki.operator_token_key()).context("the operators' key")?;
        write_once(&pki.operator_token_public_key(), operator.public_key_pem().as_bytes())?;
        Ok(pki)
    }

    pub fn identity(&self, name: &str) -> Identity {
        Identity {
            ca: self.ca(),
            cert: self.file(&format!("{name}.pem")),
            key: self.file(&format!("{name}.key")),
        }
    }
    pub fn ca(&self) -> PathBuf {
        self.file("ca.pem")
    }
    pub fn session_key(&self) -> PathBuf {
        self.file("session.key")
    }
    pub fn operator_token_key(&self) -> PathBuf {
        self.file("operator-token.key")
    }
    pub fn operator_token_public_key(&self) -> PathBuf {
        self.file("operator-token.pub")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn authority(&self) -> anyhow::Result<Issuer<'static, KeyPair>> {
        let key_file = self.file("ca.key");
        if !self.ca().exists() {
            // A key without its certificate is what an interrupted first start left: begin again.
            let key = KeyPair::generate()?;
            replace(&key_file, key.serialize_pem().as_bytes())?;
            replace(&self.ca(), authority_params().self_signed(&key)?.pem().as_bytes())?;
        }
        let pem =
            std::fs::read_to_string(&key_file).with_context(|| format!("reading {}", key_file.display()))?;
        // The parameters are always the same, so the certificate need not be parsed to sign in its name.
        Ok(Issuer::new(authority_params(), KeyPair::from_pem(&pem)?))
    }

    fn issue(&self, authority: &Issuer<'static, KeyPair>, name: &str) -> anyhow::Result<()> {
        let files = self.identity(name);
        if files.cert.exists() {
            return Ok(());
        }
        let mut params = CertificateParams::new(vec![name.to_owned(), "127.0.0.1".to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        replace(&files.key, key.serialize_pem().as_bytes())?;
        replace(&files.cert, params.signed_by(&key, authority)?.pem().as_bytes())
    }
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Capstan local installation");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// An Ed25519 key in the plain form of PKCS #8 (RFC 8410, section 7), which every library reads; the form with
/// the public key inside, which rcgen writes, is refused by some.
fn signing_key(path: &Path) -> anyhow::Result<KeyPair> {
    const PREFIX: [u8; 16] =
        [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
    if !path.exists() {
        let seed: [u8; 32] = random::bytes();
        let der = [PREFIX.as_slice(), &seed].concat();
        let pem = format!(
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
            BASE64_STANDARD.encode(der)
        );
        replace(path, pem.as_bytes())?;
    }
    let pem = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    KeyPair::from_pem(&pem).with_context(|| format!("{} is no Ed25519 key", path.display()))
}

fn write_once(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if path.exists() { Ok(()) } else { replace(path, bytes) }
}

/// For its owner alone, and whole or not at all.
pub fn replace(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let temporary = path.with_added_extension("new");
    let write = || -> std::io::Result<()> {
        let mut file =
            std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_start_with_more_nodes_keeps_what_is_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let pki = Pki::create(dir.path(), 1).expect("the first start");
        let files =
            [pki.ca(), pki.session_key(), pki.identity("node-1").cert, pki.operator_token_public_key()];
        let before = files.each_ref().map(|file| std::fs::read(file).expect("a file"));
        Pki::create(dir.path(), 3).expect("the second start");
        assert_eq!(before, files.each_ref().map(|file| std::fs::read(file).expect("a file")));
        assert!(pki.identity("node-3").key.exists());
    }
}
