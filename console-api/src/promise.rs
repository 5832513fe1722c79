//! What a spool's two numbers mean, in words: what a successful write promises, and what one lost node does
//! to the spool. The words are those of the product's replication page.

/// Writes keep returning after any one node is lost.
pub fn writable_with_one_node_lost(replicas: u32, sync: u32) -> bool {
    replicas >= sync.saturating_add(2)
}

/// Where a write is when its response arrives.
pub fn of_a_write(replicas: u32, sync: u32) -> String {
    let primary = "the primary wrote it to disk and synced";
    match (replicas, sync) {
        (..=1, _) => format!("Each acknowledged write is on one node: {primary}."),
        (_, 0) => {
            format!(
                "Each acknowledged write is on the primary: {primary}; the other copies follow, unconfirmed."
            )
        }
        (2, 1) => {
            format!(
                "Each acknowledged write is on every node holding the spool: {primary}, and the other copy confirmed it."
            )
        }
        (n, k) if k + 1 == n => format!(
            "Each acknowledged write is on every node holding the spool: {primary}, and all {k} other copies confirmed it."
        ),
        (n, k) => format!(
            "Each acknowledged write is on {} of {n} nodes: {primary}, and {k} other {} confirmed it; the rest catch up on their own.",
            k + 1,
            if k == 1 { "copy" } else { "copies" },
        ),
    }
}

/// What happens when one of the spool's nodes is lost.
pub fn with_one_node_lost(replicas: u32, sync: u32) -> String {
    match (replicas, sync) {
        (..=1, _) => {
            "Requests answer 503 until the node returns; losing its storage loses the spool's data.".into()
        }
        (_, 0) => {
            "Writes return; the lost copy catches up when it is back. When it was the primary, the writes \
                   acknowledged since the other copies last caught up are lost."
                .into()
        }
        (n, 1) if n >= 3 => {
            "Writes return on a remaining copy's confirmation; no acknowledged write is lost.".into()
        }
        (n, k) if writable_with_one_node_lost(n, k) => {
            format!(
                "Writes return on the confirmation of {k} remaining copies; no acknowledged write is lost."
            )
        }
        (2, 1) => {
            "Sends and settles wait: no other copy is left to confirm; no acknowledged write is lost.".into()
        }
        (_, k) => {
            format!("Sends and settles wait until {k} copies confirm again; no acknowledged write is lost.")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_replication_page() {
        let writable = |n, k| writable_with_one_node_lost(n, k);
        assert!(!writable(1, 0));
        assert!(writable(2, 0));
        assert!(!writable(2, 1));
        assert!(writable(3, 1));
        assert!(!writable(3, 2));
        assert!(writable(5, 3));
    }

    #[test]
    fn waiting_and_losing_are_said_where_they_happen_and_only_there() {
        for n in 1..=5 {
            for k in 0..n {
                let lost = with_one_node_lost(n, k);
                assert_eq!(lost.contains("no acknowledged write is lost"), k > 0, "{n}/{k}: {lost}");
                assert_eq!(
                    lost.starts_with("Writes return"),
                    writable_with_one_node_lost(n, k),
                    "{n}/{k}: {lost}"
                );
                assert_eq!(of_a_write(n, k).contains("every node"), n > 1 && k + 1 == n, "{n}/{k}");
            }
        }
    }

    #[test]
    fn the_usual_spool_in_words() {
        assert_eq!(
            of_a_write(3, 1),
            "Each acknowledged write is on 2 of 3 nodes: the primary wrote it to disk and synced, and 1 other copy confirmed it; the rest catch up on their own."
        );
    }
}
