//! JSON that is none, and JSON that says what it must not.

use crate::rows::Row;
use crate::site::{QUEUE, Site};
use crate::wire::Request;

/// An operation with a JSON body.
struct Op {
    method: &'static str,
    /// Below `/v1`.
    path: &'static str,
    /// Fields without which it does not get far; `$` is the token of a running lease.
    base: &'static str,
    fields: &'static [Field],
}

/// A field, and values that it must not have.
struct Field(&'static str, Kind, &'static [&'static str]);

#[derive(Clone, Copy)]
enum Kind {
    Text,
    Number,
    Whole,
    Object,
    List,
}

impl Kind {
    /// JSON of another type, or a number that is none of these.
    fn wrong(self) -> &'static [&'static str] {
        match self {
            Kind::Text => &["5", "-0.5", "true", "[]", "{}", "[\"x\"]", "\"\\ud800\"", "\"\\udc00x\""],
            Kind::Number => {
                &["\"5\"", "\"\"", "true", "[]", "{}", "[5]", "-1", "1e400", "-1e400", "\"NaN\"", HUGE]
            }
            Kind::Whole => &[
                "\"5\"",
                "\"\"",
                "true",
                "[]",
                "{}",
                "-1",
                "-5.0",
                "1.5",
                "1e400",
                "\"NaN\"",
                HUGE,
                "4294967297",
            ],
            Kind::Object => &["5", "true", "\"x\"", "[]", "[{}]", "\"{}\""],
            Kind::List => &["5", "true", "\"x\"", "{}", "{\"0\":\"x\"}"],
        }
    }
}

const HUGE: &str = "123456789012345678901234567890";
const LONG: &str = "#long";
const MESSAGE: &[Field] = &[
    Field("body", Kind::Text, &[]),
    Field("contentType", Kind::Text, &["\"\"", "\"\u{e4}\"", "\"a\\nb\"", "\"a\\u0000\"", LONG]),
    Field(
        "attributes",
        Kind::Object,
        &["{\"a\":5}", "{\"a\":null}", "{\"a\":{}}", "{\"a\":[\"x\"]}", "#33", LONG],
    ),
    Field("delaySeconds", Kind::Number, &["-0.001", "1209601", "345601"]),
    Field(
        "deliverAt",
        Kind::Text,
        &[
            "\"\"",
            "\"yesterday\"",
            "\"2026-13-01T00:00:00Z\"",
            "\"2026-02-30T00:00:00Z\"",
            "\"2026-01-01\"",
            "\"1969-12-31T23:59:59Z\"",
            "\"9999-01-01T00:00:00Z\"",
            "\"99999-01-01T00:00:00Z\"",
            "\"1767225600\"",
        ],
    ),
    Field("ttlSeconds", Kind::Number, &["0", "0.0001", "1209601"]),
    Field("dedupKey", Kind::Text, &["\"\"", LONG]),
    Field("group", Kind::Text, &["\"\"", "\"g\"", LONG]),
    Field("priority", Kind::Whole, &["10", "4.5"]),
    Field("traceparent", Kind::Text, &["\"\"", LONG]),
    Field("colour", Kind::Object, &["null"]),
    Field("Priority", Kind::Object, &["4"]),
    Field("", Kind::Object, &["4"]),
    Field("messages ", Kind::Object, &["[]"]),
];
const CONFIG: &[Field] = &[
    Field("leaseSeconds", Kind::Number, &["0", "0.05", "43201"]),
    Field("maxDeliveries", Kind::Whole, &["0", "1001"]),
    Field(
        "deadLetterQueue",
        Kind::Text,
        &["\"\"", "\"q\"", "\"a b\"", "\".x\"", "\"-x\"", "\"a/b\"", "\"\u{e4}\"", LONG],
    ),
    Field("dedupWindowSeconds", Kind::Number, &["604801"]),
    Field("retentionSeconds", Kind::Number, &["0", "0.5", "1209601"]),
    Field("delaySeconds", Kind::Number, &["1209601", "345601"]),
    Field("maxMessageBytes", Kind::Whole, &["0", "1048577"]),
    Field("retryBackoff", Kind::Object, &["{\"initialSeconds\":5,\"maxSeconds\":1}"]),
    Field("paused", Kind::Object, &[]),
    Field("colour", Kind::Object, &["null"]),
    Field("name", Kind::Object, &["\"q\""]),
];
const TOKENS: Field = Field("tokens", Kind::List, &["[]", LONG]);
const TOKEN: Field = Field("token", Kind::Text, &[]);
const OPS: &[Op] = &[
    Op { method: "POST", path: "/queues/q/messages", base: "\"body\":\"x\"", fields: MESSAGE },
    Op { method: "PUT", path: "/queues/q", base: "", fields: CONFIG },
    Op { method: "PATCH", path: "/queues/q", base: "", fields: CONFIG },
    Op {
        method: "POST",
        path: "/queues/q/receive",
        base: "",
        fields: &[
            Field("max", Kind::Whole, &["0", "101", "0.5"]),
            Field("waitSeconds", Kind::Number, &["31", "30.001"]),
            Field("leaseSeconds", Kind::Number, &["0", "0.05", "43201"]),
            Field("colour", Kind::Object, &["null"]),
        ],
    },
    Op {
        method: "POST",
        path: "/queues/q/ack",
        base: "\"token\":\"$\"",
        fields: &[TOKEN, TOKENS, Field("delaySeconds", Kind::Object, &["1", "null"])],
    },
    Op {
        method: "POST",
        path: "/queues/q/nack",
        base: "\"token\":\"$\"",
        fields: &[
            TOKEN,
            TOKENS,
            Field("delaySeconds", Kind::Number, &["1209601"]),
            Field("reason", Kind::Object, &["null"]),
        ],
    },
    Op {
        method: "POST",
        path: "/queues/q/reject",
        base: "\"token\":\"$\"",
        fields: &[
            TOKEN,
            TOKENS,
            Field("reason", Kind::Text, &["\"\"", LONG]),
            Field("delaySeconds", Kind::Object, &["1"]),
        ],
    },
    Op {
        method: "POST",
        path: "/queues/q/extend",
        base: "\"token\":\"$\",\"leaseSeconds\":43200",
        fields: &[
            TOKEN,
            Field("leaseSeconds", Kind::Number, &["0", "0.05", "43201", "null"]),
            Field("tokens", Kind::Object, &["[]"]),
        ],
    },
    Op {
        method: "POST",
        path: "/queues/q/purge",
        base: "",
        fields: &[Field("before", Kind::Object, &["null"])],
    },
    Op { method: "PATCH", path: "/spools/default", base: "", fields: &[] },
    Op { method: "PUT", path: "/spools/default", base: "", fields: &[] },
];

/// No JSON object at all.
fn no_objects() -> Vec<Vec<u8>> {
    let texts = [
        "{",
        "}",
        "[",
        "[]",
        "[{}]",
        "5",
        "\"x\"",
        "\"",
        "true",
        "null",
        "nul",
        "NaN",
        " ",
        "\0",
        "{}{}",
        "{},",
        "{}\0",
        "\u{feff}{}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{'a':1}",
        "{a:1}",
        "{\"a\":NaN}",
        "{\"a\":Infinity}",
        "{\"a\":-}",
        "{\"a\":01}",
        "{\"a\":+1}",
        "{\"a\":1.}",
        "{\"a\":0x10}",
        "{\"a\":undefined}",
        "{\"a\":\"\n\"}",
        "{\"a\":\"\\x\"}",
        "{\"a\":\"\\u12\"}",
        "{\"\\ud800\":1}",
        "{/**/}",
        "<a/>",
        "a=b&c=d",
    ];
    let mut bodies: Vec<Vec<u8>> = texts.map(|text| text.as_bytes().to_vec()).to_vec();
    bodies.extend([
        b"\xff".to_vec(),
        b"{\"a\":\"\xff\"}".to_vec(),
        b"{\"\xc3\":1}".to_vec(),
        b"\xfe\xff\x00{\x00}".to_vec(),
    ]);
    bodies.push(b"{\"a\":\"\xed\xa0\x80\"}".to_vec());
    bodies.push("[".repeat(200_000).into_bytes());
    bodies.push("{\"a\":".repeat(100_000).into_bytes());
    bodies
}

/// Deep, but well-formed.
fn deep(field: &str) -> String {
    format!("{{\"{field}\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000))
}

fn request(op: &Op, body: impl Into<Vec<u8>>) -> Request {
    Request::new(op.method, format!("/v1{}", op.path)).json(body)
}

fn object(parts: &[&str]) -> String {
    let parts: Vec<&str> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    format!("{{{}}}", parts.join(","))
}

/// `base` without `field`: each is to be named once.
fn without(base: &str, field: &str) -> String {
    let named = format!("\"{field}\":");
    let parts: Vec<&str> = base.split(',').filter(|part| !part.starts_with(&named)).collect();
    parts.join(",")
}

fn value(field: &str, value: &str) -> String {
    match (field, value) {
        ("attributes", "#33") => {
            let each: Vec<String> = (0..33).map(|number| format!("\"a{number}\":\"\"")).collect();
            format!("{{{}}}", each.join(","))
        }
        ("attributes", LONG) => format!("{{\"a\":\"{}\"}}", "x".repeat(8192)),
        ("contentType", LONG) => format!("\"{}\"", "x".repeat(257)),
        ("dedupKey" | "group", LONG) => format!("\"{}\"", "\u{e4}".repeat(65)),
        ("reason", LONG) => format!("\"{}\"", "x".repeat(1025)),
        ("tokens", LONG) => format!("[{}]", vec!["\"x\""; 1001].join(",")),
        ("deadLetterQueue", LONG) => format!("\"{}\"", "x".repeat(134)),
        (_, LONG) => format!("\"{}\"", "x".repeat(129)),
        _ => value.to_owned(),
    }
}

pub fn rows(site: &Site) -> Vec<Row> {
    let mut rows = Vec::new();
    for op in OPS {
        let base = op.base.replace('$', &site.token);
        rows.extend(no_objects().into_iter().map(|body| Row::new(request(op, body), "")));
        for end in 1..base.len().min(40) {
            rows.push(Row::new(request(op, format!("{{{}", &base[..end])), ""));
        }
        for Field(name, kind, values) in op.fields {
            let rest = without(&base, name);
            for wrong in kind.wrong().iter().chain(*values) {
                let body = object(&[&rest, &format!("\"{name}\":{}", value(name, wrong))]);
                let by_plan = *name == "tokens" && !rest.is_empty();
                let alone = object(&[&format!("\"{name}\":{}", value(name, wrong))]);
                rows.push(Row::new(
                    request(op, if by_plan && op.path != "/queues/q/extend" { alone } else { body }),
                    name,
                ));
            }
            let twice = object(&[&rest, &format!("\"{name}\":null,\"{name}\":null")]);
            rows.push(Row::new(request(op, twice), name));
        }
        if let Some(Field(first, ..)) = op.fields.first() {
            rows.push(Row::new(request(op, deep(first)), first));
        }
        let long = "f".repeat(60_000);
        if !op.fields.is_empty() {
            let cut = format!("{}...", &long[..128]);
            rows.push(Row::new(request(op, object(&[&base, &format!("\"{long}\":1")])), &cut));
            let escaped = object(&[&base, r#""w\u006frd":1,"\u0077ord":2"#]);
            rows.push(Row::new(request(op, escaped), "word"));
            let many: Vec<String> = (0..65).map(|number| format!("\"f{number}\":1")).collect();
            rows.push(Row::new(request(op, object(&[&base, &many.join(",")])), ""));
        }
    }
    rows.extend(together(site));
    rows.extend(batches());
    rows
}

/// Fields that do not go together, and those that must be there.
fn together(site: &Site) -> Vec<Row> {
    let post = |path: &str, body: &str| Request::new("POST", format!("/v1/queues/{QUEUE}/{path}")).json(body);
    let token = &site.token;
    let mut rows = vec![
        Row::new(post("messages", ""), ""),
        Row::new(post("messages", "{}"), "body"),
        Row::new(post("messages", r#"{"body":null}"#), "body"),
        Row::new(post("messages", r#"{"Body":"x"}"#), "body"),
        Row::new(post("messages", r#"{"body":"x","bodyBase64":"eA=="}"#), "bodyBase64"),
        Row::new(
            post("messages", r#"{"body":"x","delaySeconds":1,"deliverAt":"2026-12-31T00:00:00Z"}"#),
            "deliverAt",
        ),
        Row::new(post("messages", r#"{"body":"x","attributes":{"a":"1","a":"2"}}"#), "a"),
        Row::with(post("messages", r#"{"body":"x","dedupKey":"k"}"#), 400, "dedup_not_enabled", "dedupKey"),
        Row::new(post("extend", "{}"), "token"),
        Row::new(post("extend", &format!("{{\"token\":\"{token}\"}}")), "leaseSeconds"),
        Row::new(post("extend", r#"{"leaseSeconds":5}"#), "token"),
    ];
    for encoded in ["eA", "eA=", "eA===", "e A==", "eA==\\n", "-_8=", "!!!!", "eB==", "\u{e4}"] {
        rows.push(Row::new(post("messages", &format!("{{\"bodyBase64\":\"{encoded}\"}}")), "bodyBase64"));
    }
    for settle in ["ack", "nack", "reject"] {
        rows.push(Row::new(post(settle, ""), "token"));
        rows.push(Row::new(post(settle, "{}"), "token"));
        for (list, index) in
            [("[5]", 0), ("[null]", 0), ("[\"x\",{}]", 1), ("[[\"x\"]]", 0), ("[\"x\",\"\\ud800\"]", 1)]
        {
            rows.push(Row::new(post(settle, &format!("{{\"tokens\":{list}}}")), "tokens").at(index));
        }
        rows.push(Row::new(
            post(settle, &format!("{{\"token\":\"{token}\",\"tokens\":[\"{token}\"]}}")),
            "tokens",
        ));
    }
    for method in ["PUT", "PATCH"] {
        let config = |body: &str| Request::new(method, format!("/v1/queues/{QUEUE}")).json(body);
        let nested = [
            (r#"{"retryBackoff":{"initialSeconds":"x"}}"#, "initialSeconds"),
            (r#"{"retryBackoff":{"initialSeconds":-1}}"#, "initialSeconds"),
            (r#"{"retryBackoff":{"maxSeconds":1209601}}"#, "maxSeconds"),
            (r#"{"retryBackoff":{"multiplier":0.5}}"#, "multiplier"),
            (r#"{"retryBackoff":{"multiplier":101}}"#, "multiplier"),
            (r#"{"retryBackoff":{"multiplier":"2"}}"#, "multiplier"),
            (r#"{"retryBackoff":{"multiplier":1e400}}"#, "multiplier"),
            (r#"{"retryBackoff":{"colour":1}}"#, "colour"),
            (r#"{"retryBackoff":{"maxSeconds":1,"maxSeconds":1}}"#, "maxSeconds"),
            (r#"{"paused":{"send":1}}"#, "send"),
            (r#"{"paused":{"receive":"true"}}"#, "receive"),
            (r#"{"paused":{"colour":true}}"#, "colour"),
            (r#"{"paused":{"send":true,"send":true}}"#, "send"),
            (r#"{"retentionSeconds":60,"delaySeconds":61}"#, "delaySeconds"),
        ];
        rows.extend(nested.map(|(body, field)| Row::new(config(body), field)));
        let beyond = [
            (r#"{"retentionSeconds":345601}"#, "retentionSeconds"),
            (r#"{"maxMessageBytes":262145}"#, "maxMessageBytes"),
        ];
        rows.extend(beyond.map(|(body, field)| Row::with(config(body), 403, "limit_exceeded", field)));
        let spool = |body: &str| Request::new(method, "/v1/spools/default").json(body);
        for body in [r#"{"numReplicas":2}"#, r#"{"numSync":1}"#, r#"{"numSync":"0"}"#, r#"{"numSync":[]}"#] {
            rows.push(Row::with(spool(body), 409, "immutable", ""));
        }
        for body in ["", "{}", r#"{"numReplicas":1.0,"numSync":0}"#, r#"{"name":"x"}"#] {
            rows.push(Row::with(spool(body), 405, "method_not_allowed", ""));
        }
        rows.push(Row::new(spool(r#"{"numSync":0,"numSync":0}"#), "numSync"));
    }
    rows
}

/// An invalid item refuses the whole batch, naming its index.
fn batches() -> Vec<Row> {
    let post = |body: String| Request::new("POST", format!("/v1/queues/{QUEUE}/messages")).json(body);
    let good = r#"{"body":"x"}"#;
    let mut rows = Vec::new();
    for Field(name, kind, values) in MESSAGE {
        for wrong in kind.wrong().iter().chain(*values) {
            let rest = without("\"body\":\"x\"", name);
            let item = object(&[&rest, &format!("\"{name}\":{}", value(name, wrong))]);
            rows.push(Row::new(post(format!("{{\"messages\":[{good},{good},{item},{good}]}}")), name).at(2));
        }
    }
    for (item, field) in [
        ("{}", "body"),
        (r#"{"messages":[{"body":"x"}]}"#, "body"),
        (r#"{"body":"x","messages":[{"body":"x"}]}"#, "messages"),
        (r#"{"body":"x","body":"y"}"#, "body"),
        (r#"{"body":"x","attributes":{"a":"1","a":"2"}}"#, "a"),
        (r#"{"body":"x","bodyBase64":"eA=="}"#, "bodyBase64"),
        (r#"{"bodyBase64":"e"}"#, "bodyBase64"),
    ] {
        rows.push(Row::new(post(format!("{{\"messages\":[{good},{item}]}}")), field).at(1));
    }
    for item in ["5", "null", "\"x\"", "[]", "true", "[{}]"] {
        rows.push(Row::new(post(format!("{{\"messages\":[{good},{item},{good}]}}")), "messages").at(1));
    }
    let keyed = r#"{"body":"x","dedupKey":"k"}"#;
    rows.push(
        Row::with(post(format!("{{\"messages\":[{good},{keyed}]}}")), 400, "dedup_not_enabled", "dedupKey")
            .at(1),
    );
    for list in Kind::List.wrong().iter().chain(&["[]"]) {
        rows.push(Row::new(post(format!("{{\"messages\":{list}}}")), "messages"));
    }
    let over = vec![good; 1001].join(",");
    rows.push(Row::new(post(format!("{{\"messages\":[{over}]}}")), "messages"));
    // Tens of thousands of the smallest items there are.
    rows.push(Row::new(post(format!("{{\"messages\":[{}]}}", vec!["{}"; 300_000].join(","))), "messages"));
    rows.push(Row::new(post(format!("{{\"messages\":[{good}],\"body\":\"x\"}}")), "body"));
    rows.push(Row::new(post(format!("{{\"messages\":[{good}],\"messages\":[]}}")), "messages"));
    rows.push(Row::new(post(format!("{{\"messages\":[{good},]}}")), ""));
    rows.push(Row::new(post(format!("{{\"messages\":[{good}")), ""));
    rows
}
