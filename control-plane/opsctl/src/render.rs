//! Tables for people, JSON for programs. Pure: replies in, text out.

use proto::ops as pb;
use serde::Serialize;
use std::fmt::Write;

pub fn nodes(nodes: &[pb::Node]) -> String {
    let row = |node: &pb::Node| {
        let alive = if node.alive { "alive" } else { "GONE" };
        let numbers = [node.copies.to_string(), node.primaries.to_string()];
        let [copies, primaries] = numbers;
        vec![node.name.clone(), alive.to_owned(), copies, primaries, or_dash(&node.http_address)]
    };
    table(&["NODE", "STATE", "COPIES", "PRIMARIES", "API"], nodes.iter().map(row))
}

pub fn spools(spools: &[pb::Spool]) -> String {
    let row = |spool: &pb::Spool| {
        let primary = spool.copies.iter().find(|copy| copy.primary);
        vec![
            spool.id.clone(),
            or_dash(&spool.account_name),
            or_dash(&spool.name),
            format!("{}/{}", spool.num_replicas, spool.num_sync),
            spool.state.clone(),
            spool.epoch.to_string(),
            primary.map_or_else(|| "-".to_owned(), |copy| copy.node.clone()),
        ]
    };
    table(&["ID", "ACCOUNT", "SPOOL", "COPIES/SYNC", "STATE", "EPOCH", "PRIMARY"], spools.iter().map(row))
}

pub fn spool(spool: &pb::Spool) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:<12} {}", printable(value));
    };
    line("spool", &format!("{} ({})", or_dash(&spool.name), spool.id));
    line("account", &format!("{} ({})", or_dash(&spool.account_name), or_dash(&spool.account_id)));
    line("copies", &format!("{}, {} of them synchronous", spool.num_replicas, spool.num_sync));
    line("state", &spool.state);
    line("epoch", &format!("{} ({})", spool.epoch, spool.phase));
    if spool.lineage > 0 {
        line("lineage", &format!("{}: so many elections may have lost writes", spool.lineage));
    }
    if !spool.waiting_for.is_empty() {
        line("waiting for", &spool.waiting_for.join(", "));
    }
    let row = |copy: &pb::Copy| {
        vec![
            copy.node.clone(),
            if copy.primary { "primary" } else { "copy" }.to_owned(),
            if copy.answers { "yes" } else { "NO" }.to_owned(),
            or_dash(&copy.position),
            or_dash(&copy.confirmed),
            copy.behind_entries.to_string(),
            copy.copy_id.clone(),
        ]
    };
    let columns = ["NODE", "ROLE", "ANSWERS", "POSITION", "CONFIRMED", "BEHIND", "COPY"];
    format!("{text}\n{}", table(&columns, spool.copies.iter().map(row)))
}

pub fn moved(moved: &pb::MovePrimaryReply) -> String {
    let pb::MovePrimaryReply { from_node, to_node, epoch, took_ms } = moved;
    format!("The primary moved from {from_node} to {to_node}, epoch {epoch}, in {took_ms} ms.\n")
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

/// Columns as wide as their widest cell; nothing is cut off.
fn table(columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head = columns.iter().map(|column| (*column).to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| printable(&row[column]).chars().count()).max();
    let widths: Vec<usize> = (0..columns.len()).map(|column| width(column).unwrap_or_default()).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{:<width$}", printable(cell)));
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

/// Account names are chosen by customers: they must not drive the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

// For programs: the names of the HTTP contract where it has them.

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node<'a> {
    name: &'a str,
    alive: bool,
    process_id: &'a str,
    heartbeat_no: u64,
    http_address: &'a str,
    internal_address: &'a str,
    copies: u32,
    primaries: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spool<'a> {
    id: &'a str,
    account_id: &'a str,
    account_name: &'a str,
    name: &'a str,
    num_replicas: u32,
    num_sync: u32,
    state: &'a str,
    phase: &'a str,
    epoch: u64,
    lineage: u64,
    waiting_for: &'a [String],
    copies: Vec<Copy<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Copy<'a> {
    node: &'a str,
    copy_id: &'a str,
    primary: bool,
    answers: bool,
    /// Null: it does not answer.
    position: Option<&'a str>,
    confirmed_position: Option<&'a str>,
    behind_entries: u64,
}

#[derive(Serialize)]
pub struct NodeList<'a> {
    nodes: Vec<Node<'a>>,
}

#[derive(Serialize)]
pub struct SpoolList<'a> {
    spools: Vec<Spool<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Moved<'a> {
    from_node: &'a str,
    to_node: &'a str,
    epoch: u64,
    took_ms: u64,
}

pub fn json(value: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(value).expect("plain structs with string keys");
    text.push('\n');
    text
}

pub fn nodes_json(nodes: &[pb::Node]) -> NodeList<'_> {
    NodeList { nodes: nodes.iter().map(node_json).collect() }
}

fn node_json(node: &pb::Node) -> Node<'_> {
    Node {
        name: &node.name,
        alive: node.alive,
        process_id: &node.process_id,
        heartbeat_no: node.heartbeat_no,
        http_address: &node.http_address,
        internal_address: &node.internal_address,
        copies: node.copies,
        primaries: node.primaries,
    }
}

pub fn spools_json(spools: &[pb::Spool]) -> SpoolList<'_> {
    SpoolList { spools: spools.iter().map(spool_json).collect() }
}

pub fn spool_json(spool: &pb::Spool) -> Spool<'_> {
    Spool {
        id: &spool.id,
        account_id: &spool.account_id,
        account_name: &spool.account_name,
        name: &spool.name,
        num_replicas: spool.num_replicas,
        num_sync: spool.num_sync,
        state: &spool.state,
        phase: &spool.phase,
        epoch: spool.epoch,
        lineage: spool.lineage,
        waiting_for: &spool.waiting_for,
        copies: spool.copies.iter().map(copy_json).collect(),
    }
}

fn copy_json(copy: &pb::Copy) -> Copy<'_> {
    let known = |text: &&str| !text.is_empty();
    Copy {
        node: &copy.node,
        copy_id: &copy.copy_id,
        primary: copy.primary,
        answers: copy.answers,
        position: Some(copy.position.as_str()).filter(known),
        confirmed_position: Some(copy.confirmed.as_str()).filter(known),
        behind_entries: copy.behind_entries,
    }
}

pub fn moved_json(moved: &pb::MovePrimaryReply) -> Moved<'_> {
    let pb::MovePrimaryReply { from_node, to_node, epoch, took_ms } = moved;
    Moved { from_node, to_node, epoch: *epoch, took_ms: *took_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> pb::Spool {
        let copy = |node: &str, primary| pb::Copy {
            node: node.to_owned(),
            copy_id: "c".to_owned(),
            primary,
            answers: primary,
            position: if primary { "3.12".to_owned() } else { String::new() },
            confirmed: "3.12".to_owned(),
            behind_entries: 0,
        };
        pb::Spool {
            id: "0f".to_owned(),
            account_name: "Acme\u{1b}[2J".to_owned(),
            name: "default".to_owned(),
            num_replicas: 3,
            num_sync: 1,
            state: "serving".to_owned(),
            phase: "active".to_owned(),
            epoch: 3,
            copies: vec![copy("node-1", true), copy("node-22", false)],
            ..pb::Spool::default()
        }
    }

    #[test]
    fn columns_line_up_and_control_characters_stay_out() {
        let text = spools(&[example()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "ID  ACCOUNT   SPOOL    COPIES/SYNC  STATE    EPOCH  PRIMARY");
        assert_eq!(lines[1], "0f  Acme?[2J  default  3/1          serving  3      node-1");
    }

    #[test]
    fn a_spool_shows_each_copy_and_what_is_not_known() {
        let text = spool(&example());
        assert!(text.contains("copies       3, 1 of them synchronous\n"), "{text}");
        assert!(text.contains("node-22  copy     NO       -         3.12       0       c\n"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn nobody_there_is_a_heading_and_an_empty_list() {
        assert_eq!(nodes(&[]), "NODE  STATE  COPIES  PRIMARIES  API\n");
        assert_eq!(json(&nodes_json(&[])), "{\n  \"nodes\": []\n}\n");
    }

    #[test]
    fn programs_get_nulls_for_what_is_not_known() {
        let value = serde_json::to_value(spool_json(&example())).expect("JSON");
        assert_eq!(value["copies"][1]["position"], serde_json::Value::Null);
        assert_eq!(value["copies"][0]["confirmedPosition"], "3.12");
        assert_eq!(value["numReplicas"], 3);
    }

    #[test]
    fn a_move_says_from_where_to_where() {
        let reply = pb::MovePrimaryReply {
            from_node: "a".to_owned(),
            to_node: "b".to_owned(),
            epoch: 4,
            took_ms: 190,
        };
        assert_eq!(moved(&reply), "The primary moved from a to b, epoch 4, in 190 ms.\n");
    }
}
