//! The control plane, over gRPC with mutual TLS, and what its refusals mean to a caller.
//!
//! A status with `spool-code` is the control plane's own word, written for the caller. Without it the
//! question is whether the request may have had an effect, which decides between 503 (certainly none) and
//! 504 (unknown): a connection that could not be made carried nothing; one that broke may have.

use crate::http::problem::Problem;
use proto::control::console_client::ConsoleClient;
use proto::control::*;
use std::error::Error;
use std::time::Duration;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, ConnectError, Request, Response, Status};
use types::ErrorCode;

/// How long a caller waits for the control plane.
const CALL_MAX: Duration = Duration::from_secs(10);
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// A connection whose other end says nothing for so long is given up.
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_MAX: Duration = Duration::from_secs(3);

#[derive(Clone)]
pub struct Control {
    client: ConsoleClient<Channel>,
}

/// PEM text.
pub struct Tls {
    pub ca: String,
    pub cert: String,
    pub key: String,
    /// The DNS name that the control plane's certificate must bear.
    pub name: String,
}

/// May the call, when it breaks, have changed something that anybody could see?
#[derive(Clone, Copy)]
enum Call {
    Reads,
    Writes,
}

impl Control {
    /// Connects at the first call, and again whenever the connection is lost.
    pub fn new(address: String, tls: Tls) -> Result<Self, tonic::transport::Error> {
        let config = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(tls.ca))
            .identity(Identity::from_pem(tls.cert, tls.key))
            .domain_name(tls.name);
        let channel = Endpoint::from_shared(address)?
            .tls_config(config)?
            .connect_timeout(CONNECT_MAX)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_MAX)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true)
            .connect_lazy();
        Ok(Control { client: ConsoleClient::new(channel) })
    }

    /// For the poll of the session keys, which decides for itself how long it waits.
    pub async fn session_keys(&self, wait: Duration) -> Result<SessionKeysReply, Status> {
        let mut request = Request::new(SessionKeysRequest {});
        request.set_timeout(wait);
        self.client.clone().session_keys(request).await.map(Response::into_inner)
    }
}

macro_rules! calls {
    ($($name:ident($request:ty) -> $reply:ty, $effect:ident;)*) => {
        impl Control {$(
            pub async fn $name(&self, request: $request) -> Result<$reply, Problem> {
                let mut request = Request::new(request);
                request.set_timeout(CALL_MAX);
                let reply = self.client.clone().$name(request).await;
                reply.map(Response::into_inner).map_err(|status| refusal(&status, Call::$effect))
            }
        )*}
    };
}

calls! {
    sign_up(SignUpRequest) -> Session, Writes;
    // A session whose token reached nobody is no effect.
    log_in(LogInRequest) -> Session, Reads;
    refresh(RefreshRequest) -> Session, Writes;
    log_out(LogOutRequest) -> LogOutReply, Writes;
    get_account(AccountRequest) -> AccountReply, Reads;
    list_plans(ListPlansRequest) -> ListPlansReply, Reads;
    set_plan(SetPlanRequest) -> AccountReply, Writes;
    list_keys(AccountRequest) -> ListKeysReply, Reads;
    create_key(CreateKeyRequest) -> CreateKeyReply, Writes;
    delete_key(DeleteKeyRequest) -> DeleteKeyReply, Writes;
    list_spools(AccountRequest) -> ListSpoolsReply, Reads;
    create_spool(CreateSpoolRequest) -> SpoolDetail, Writes;
    get_spool(GetSpoolRequest) -> SpoolDetail, Reads;
}

fn refusal(status: &Status, call: Call) -> Problem {
    if let Some(code) = metadata(status, "spool-code").and_then(ErrorCode::parse) {
        return own_word(status, code);
    }
    let code = match status.code() {
        Code::InvalidArgument | Code::OutOfRange => ErrorCode::InvalidRequest,
        Code::Unauthenticated => ErrorCode::Unauthenticated,
        Code::PermissionDenied => ErrorCode::Forbidden,
        Code::NotFound => ErrorCode::NotFound,
        Code::AlreadyExists => ErrorCode::AlreadyExists,
        Code::ResourceExhausted => ErrorCode::RateLimited,
        _ => return broken(status, call),
    };
    own_word(status, code)
}

/// The control plane refused, and said why.
fn own_word(status: &Status, code: ErrorCode) -> Problem {
    if code.http_status() == 500 {
        return defect(status);
    }
    let problem = Problem::new(code, status.message().to_owned());
    match metadata(status, "spool-field") {
        Some(field) => problem.field(camel_case(field)),
        None => problem,
    }
}

/// The call did not come to an end: nobody is to blame who could read about it, so the answer says only what
/// is known of the effect.
fn broken(status: &Status, call: Call) -> Problem {
    let sent = !never_sent(status);
    let code = match (status.code(), call) {
        (Code::Unavailable, _) if !sent => ErrorCode::Unavailable,
        // With no source it is the server's word, not the transport's: it did not begin.
        (Code::Unavailable, _) if status.source().is_none() => ErrorCode::Unavailable,
        (Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Aborted, Call::Reads) => {
            ErrorCode::Unavailable
        }
        (Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Aborted, Call::Writes) => {
            ErrorCode::OperationUnconfirmed
        }
        (Code::Unknown, _) if status.source().is_some() => match (sent, call) {
            (true, Call::Writes) => ErrorCode::OperationUnconfirmed,
            _ => ErrorCode::Unavailable,
        },
        _ => return defect(status),
    };
    tracing::warn!(code = ?status.code(), error = %chain(status), "the control plane did not answer");
    Problem::new(
        code,
        match code {
            ErrorCode::OperationUnconfirmed => {
                "The control plane did not answer in time; this may still take effect."
            }
            _ => "The control plane cannot be reached now; nothing was changed.",
        },
    )
}

fn defect(status: &Status) -> Problem {
    tracing::error!(code = ?status.code(), error = %chain(status), "the control plane failed");
    Problem::internal()
}

fn never_sent(status: &Status) -> bool {
    sources(status).any(|error| error.is::<ConnectError>())
}

fn sources<'a>(status: &'a Status) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(status.source(), |error: &&'a (dyn Error + 'static)| (*error).source())
}

/// What went wrong, from the outside in.
fn chain(status: &Status) -> String {
    let mut text = status.message().to_owned();
    for source in sources(status).take(8) {
        text.push_str(": ");
        text.push_str(&source.to_string());
    }
    text
}

fn metadata<'a>(status: &'a Status, name: &str) -> Option<&'a str> {
    status.metadata().get(name).and_then(|value| value.to_str().ok())
}

/// The control plane may name a field of the message that it was sent; the caller knows it in camel case.
fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let mut text = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        text.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        text.push_str(letters.as_str());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::metadata::MetadataMap;

    fn status(code: Code, metadata: &[(&'static str, &'static str)]) -> Status {
        let mut map = MetadataMap::new();
        for (name, value) in metadata {
            map.insert(*name, value.parse().expect("ASCII"));
        }
        Status::with_metadata(code, "why", map)
    }

    #[test]
    fn the_control_planes_own_code_and_field_reach_the_caller() {
        let given = status(
            Code::FailedPrecondition,
            &[("spool-code", "limit_exceeded"), ("spool-field", "num_sync")],
        );
        for call in [Call::Reads, Call::Writes] {
            let problem = refusal(&given, call);
            assert_eq!(problem.code, ErrorCode::LimitExceeded);
            assert_eq!(problem.field.as_deref(), Some("numSync"));
            assert_eq!(problem.detail, "why");
        }
    }

    #[test]
    fn only_a_broken_write_leaves_doubt() {
        let late = status(Code::DeadlineExceeded, &[]);
        assert_eq!(refusal(&late, Call::Reads).code, ErrorCode::Unavailable);
        assert_eq!(refusal(&late, Call::Writes).code, ErrorCode::OperationUnconfirmed);
        let mut never = status(Code::Unavailable, &[]);
        never.set_source(std::sync::Arc::new(ConnectError("refused".into())));
        assert_eq!(refusal(&never, Call::Writes).code, ErrorCode::Unavailable);
        let mut broke = status(Code::Unavailable, &[]);
        broke.set_source(std::sync::Arc::new(std::io::Error::other("reset")));
        assert_eq!(refusal(&broke, Call::Writes).code, ErrorCode::OperationUnconfirmed);
    }

    #[test]
    fn a_defect_is_not_explained_to_the_caller() {
        for code in [Code::Internal, Code::Unknown, Code::Unimplemented, Code::DataLoss] {
            let problem = refusal(&status(code, &[]), Call::Writes);
            assert_eq!(problem.code, ErrorCode::Internal);
            assert!(!problem.detail.contains("why"));
        }
    }

    #[test]
    fn fields_are_named_as_the_caller_wrote_them() {
        assert_eq!(camel_case("num_replicas"), "numReplicas");
        assert_eq!(camel_case("numReplicas"), "numReplicas");
        assert_eq!(camel_case(""), "");
    }
}
