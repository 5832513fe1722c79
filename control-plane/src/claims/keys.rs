//! The keys, spelled once.

use types::{NodeName, SpoolId};

pub const SPOOLS: &str = "/spools/";
pub const NODES: &str = "/nodes/";

pub fn record(spool: SpoolId) -> String {
    format!("{SPOOLS}{spool}/record")
}

pub fn status(spool: SpoolId) -> String {
    format!("{SPOOLS}{spool}/status")
}

pub fn eguard(node: &NodeName) -> String {
    format!("{NODES}{node}/eguard")
}

pub fn owner_revision(node: &NodeName) -> String {
    format!("/owners/{node}/rev")
}

pub fn claim(node: &NodeName, spool: SpoolId) -> String {
    format!("/owners/{node}/{spool}")
}

/// Whose record this is the key of.
pub fn record_of(key: &[u8]) -> Option<SpoolId> {
    within(key, SPOOLS, "/record")?.parse().ok()
}

pub fn alive_of(key: &[u8]) -> Option<NodeName> {
    within(key, NODES, "/alive").map(NodeName::from)
}

fn within<'a>(key: &'a [u8], before: &str, after: &str) -> Option<&'a str> {
    std::str::from_utf8(key)
        .ok()?
        .strip_prefix(before)?
        .strip_suffix(after)
        .filter(|name| !name.contains('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_tells_whose_it_is_and_of_what() {
        let spool = SpoolId::from_u128(7);
        assert_eq!(record_of(record(spool).as_bytes()), Some(spool));
        assert_eq!(record_of(status(spool).as_bytes()), None);
        assert_eq!(alive_of(b"/nodes/node-1/alive"), Some("node-1".into()));
        assert_eq!(alive_of(eguard(&"node-1".into()).as_bytes()), None);
        assert_eq!(record_of(b"/spools/not-an-id/record"), None);
        assert_eq!(alive_of(b"/nodes/a/b/alive"), None);
    }
}
