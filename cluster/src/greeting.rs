//! What a person is told when everything answers: addresses, a key, and lines to paste.

use crate::dev_file::DevFile;
use std::fmt::Write;

/// Every `curl` line stands for itself, so that any of them can be pasted alone; the last needs the one before it, which
/// keeps the token of what it received.
pub fn greeting(dev: &DevFile) -> String {
    let nodes: Vec<String> = dev.nodes.iter().map(|node| format!("{} {}", node.name, node.api)).collect();
    let mut text = String::new();
    let _ = writeln!(
        text,
        "\nCapstan is up.\n\
         console  {}\n\
         login    {} / {}\n\
         API key  {}   (plan {})\n\
         nodes    {}\n\n\
         # create a queue, send, receive, ack\n",
        dev.console,
        dev.login.email,
        dev.login.password,
        dev.api_key,
        dev.plan,
        nodes.join("  "),
    );
    for line in curl_lines(dev) {
        let _ = writeln!(text, "{line}\n");
    }
    text
}

/// Create a queue, send, receive, ack.
pub fn curl_lines(dev: &DevFile) -> [String; 4] {
    let queue = format!("{}/v1/queues/hello", dev.api.first().map_or("", String::as_str));
    let key = format!("-H 'Authorization: Bearer {}'", dev.api_key);
    let json = "-H 'Content-Type: application/json'";
    [
        format!(r#"curl -sS -X PUT {queue} {key} {json} -d '{{}}' -w '\n'"#),
        format!(r#"curl -sS {queue}/messages {key} {json} -d '{{"body": "Hello, queue"}}' -w '\n'"#),
        format!(
            r#"TOKEN=$(curl -sS {queue}/receive {key} {json} -d '{{"waitSeconds": 5}}' | tee /dev/stderr | sed -n 's/.*"token": *"\([^"]*\)".*/\1/p'); echo"#
        ),
        format!(r#"curl -sS {queue}/ack {key} {json} -d "{{\"token\": \"$TOKEN\"}}" -w '%{{http_code}}\n'"#),
    ]
}
