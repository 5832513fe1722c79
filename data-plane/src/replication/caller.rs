//! Who is at the other end of a connection, and what it may ask. A certificate's DNS names say who it is.

use rustls::pki_types::{CertificateDer, ServerName};
use std::sync::Arc;
use tonic::{Request, Status};
use types::NodeName;

const CONTROL_PLANE: &str = "control-plane";
const OPERATOR: &str = "operator";
/// Names of other parts, which no node has.
const NOT_NODES: [&str; 3] = [CONTROL_PLANE, OPERATOR, "console-api"];

pub struct Caller {
    certificates: Arc<Vec<CertificateDer<'static>>>,
}

impl Caller {
    /// The handshake has verified the certificate against the installation's authority.
    pub fn of<T>(request: &Request<T>) -> Result<Caller, Status> {
        let certificates = request.peer_certs().filter(|certificates| !certificates.is_empty());
        let certificates =
            certificates.ok_or_else(|| Status::unauthenticated("a client certificate is needed"))?;
        Ok(Caller { certificates })
    }

    fn is(&self, name: &str) -> bool {
        let certificate = self.certificates.first().and_then(|der| webpki::EndEntityCert::try_from(der).ok());
        let name = ServerName::try_from(name).ok().filter(|name| matches!(name, ServerName::DnsName(_)));
        match (certificate, name) {
            (Some(certificate), Some(name)) => certificate.verify_is_valid_for_subject_name(&name).is_ok(),
            _ => false,
        }
    }

    pub fn must_be_node(&self, claimed: &NodeName) -> Result<(), Status> {
        if NOT_NODES.contains(&claimed.0.as_str()) || !self.is(&claimed.0) {
            return Err(Status::permission_denied(format!("the certificate is not that of node {claimed}")));
        }
        Ok(())
    }

    pub fn must_be_controller(&self) -> Result<(), Status> {
        if self.is(CONTROL_PLANE) {
            return Ok(());
        }
        Err(Status::permission_denied("only the control plane may ask this"))
    }

    pub fn must_be_controller_or_operator(&self) -> Result<(), Status> {
        if self.is(CONTROL_PLANE) || self.is(OPERATOR) {
            return Ok(());
        }
        Err(Status::permission_denied("only the control plane and operators may ask this"))
    }
}
