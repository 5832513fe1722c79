//! The stable error codes: what a client may build on. One table says, for each, the HTTP status and
//! whether the request may have had an effect.

/// May the refused request have taken effect?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Certainly not, now or ever.
    None,
    /// It may have, or may yet.
    Unknown,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $text:literal, $status:literal, $effect:ident, $title:literal;)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum ErrorCode { $($(#[$doc])* $code,)* }

        impl ErrorCode {
            pub const ALL: &[ErrorCode] = &[$(ErrorCode::$code,)*];
            /// The stable word, in `code`.
            pub const fn as_str(self) -> &'static str {
                match self { $(ErrorCode::$code => $text,)* }
            }
            pub const fn http_status(self) -> u16 {
                match self { $(ErrorCode::$code => $status,)* }
            }
            pub const fn effect(self) -> Effect {
                match self { $(ErrorCode::$code => Effect::$effect,)* }
            }
            /// A few words for a person, the same for every occurrence.
            pub const fn title(self) -> &'static str {
                match self { $(ErrorCode::$code => $title,)* }
            }
            pub fn parse(text: &str) -> Option<ErrorCode> {
                match text { $($text => Some(ErrorCode::$code),)* _ => None }
            }
        }
    };
}

codes! {
    InvalidRequest = "invalid_request", 400, None, "The request is malformed";
    InvalidToken = "invalid_token", 400, None, "Not a token";
    DedupNotEnabled = "dedup_not_enabled", 400, None, "The queue has no dedup window";
    Unauthenticated = "unauthenticated", 401, None, "A valid API key is needed";
    Forbidden = "forbidden", 403, None, "The API key does not allow this";
    LimitExceeded = "limit_exceeded", 403, None, "The plan does not hold this";
    NotFound = "not_found", 404, None, "Nothing here";
    SpoolNotFound = "spool_not_found", 404, None, "No such spool";
    QueueNotFound = "queue_not_found", 404, None, "No such queue";
    MessageNotFound = "message_not_found", 404, None, "No such message";
    MethodNotAllowed = "method_not_allowed", 405, None, "Not with this method";
    QueueInUse = "queue_in_use", 409, None, "Another queue dead-letters into this one";
    QueuePaused = "queue_paused", 409, None, "The queue takes no messages now";
    SettlePending = "settle_pending", 409, None, "An earlier settle of the message is open";
    Immutable = "immutable", 409, None, "This was set at creation, for good";
    AlreadyExists = "already_exists", 409, None, "The name is taken";
    StaleToken = "stale_token", 410, None, "Not the message's current lease";
    PreconditionFailed = "precondition_failed", 412, None, "Not in the state that the request requires";
    PayloadTooLarge = "payload_too_large", 413, None, "The body is too large";
    UnsupportedMediaType = "unsupported_media_type", 415, None, "This content type or encoding is not accepted";
    DedupKeyReused = "dedup_key_reused", 422, None, "The dedup key was used for another payload";
    RateLimited = "rate_limited", 429, None, "Too many requests";
    HeadersTooLarge = "headers_too_large", 431, None, "The headers are too large";
    /// A defect of ours. The write that met it may be in the log.
    Internal = "internal", 500, Unknown, "A defect of the service";
    NoPrimary = "no_primary", 503, None, "The spool has no primary now";
    NeedCopies = "need_copies", 503, None, "Too few copies to choose a primary";
    ClaimInDoubt = "claim_in_doubt", 503, None, "The primary's right to serve is in doubt";
    NotEnoughCopies = "not_enough_copies", 503, None, "Too few copies to confirm the write";
    SpoolBusy = "spool_busy", 503, None, "Too many writes wait";
    StorageFull = "storage_full", 503, None, "The disk is full";
    StorageUnavailable = "storage_unavailable", 503, None, "The disk does not work";
    Quarantined = "quarantined", 503, None, "An operator is needed";
    KeyUnverified = "key_unverified", 503, None, "The API key cannot be verified now";
    /// The control plane cannot be asked.
    Unavailable = "unavailable", 503, None, "A part of the service cannot be reached now";
    /// The only answer that leaves doubt.
    OperationUnconfirmed = "operation_unconfirmed", 504, Unknown, "Not confirmed; it may take effect";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_with_503_have_no_effect_and_only_504_and_defects_leave_doubt() {
        for code in ErrorCode::ALL {
            let doubt = code.effect() == Effect::Unknown;
            assert_eq!(doubt, matches!(code.http_status(), 500 | 504), "{code:?}");
            assert_eq!(ErrorCode::parse(code.as_str()), Some(*code));
        }
    }
}
