//! The account, its keys, its spools.

use crate::client::{api, ask};
use crate::fake::ACCOUNT;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

#[tokio::test]
async fn the_account_shows_its_plan_limits_and_usage() {
    let api = api().await;
    let token = api.token().await;
    let account = api.send(ask("GET", "/api/account").bearer(&token)).await.json();
    assert_eq!(account["id"], ACCOUNT.to_string());
    assert_eq!(account["plan"], "free");
    assert_eq!(account["limits"]["queuesPerSpool"], 100);
    assert_eq!(account["usage"]["spools"], 1);
    assert_eq!(account["createdAt"], "1970-01-01T00:00:00.001Z");
    let plans = api.send(ask("GET", "/api/plans").bearer(&token)).await.json();
    let names: Vec<_> =
        plans["plans"].as_array().expect("a list").iter().map(|plan| plan["name"].clone()).collect();
    assert_eq!(names, ["free", "pro", "scale"]);
    assert_eq!(plans["next"], Value::Null);
}

#[tokio::test]
async fn the_plan_is_changed_and_an_unknown_one_refused() {
    let api = api().await;
    let token = api.token().await;
    let put = |body| api.send(ask("PUT", "/api/account/plan").bearer(&token).json(body));
    let answer = put(json!({"plan": "pro"})).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["limits"]["replicas"]), (200, &json!(3)));
    put(json!({"plan": "imaginary"})).await.refuses(400, "invalid_request", "plan");
    put(json!({"plan": 3})).await.refuses(400, "invalid_request", "plan");
}

#[tokio::test]
async fn a_keys_secret_is_shown_once() {
    let api = api().await;
    let token = api.token().await;
    let body = json!({"name": "ci", "scopes": ["send", "read"], "queuePrefix": "ci-", "expiresAt": "2099-01-01T00:00:00Z"});
    let answer = api.send(ask("POST", "/api/keys").bearer(&token).json(body)).await;
    assert_eq!(answer.status, 201);
    let key = answer.json();
    assert_eq!(key["secret"], "cap_abcdefgh");
    assert_eq!(key["expiresAt"], "2099-01-01T00:00:00.000Z");
    assert_eq!(
        (&key["spool"], &key["queuePrefix"], &key["lastUsedAt"]),
        (&Value::Null, &json!("ci-"), &Value::Null)
    );
    let list = api.send(ask("GET", "/api/keys").bearer(&token)).await;
    assert!(!String::from_utf8_lossy(&list.body).contains("cap_abcdefgh"));
    assert_eq!(list.json()["keys"][0]["hint"], "cap_abcd");
    let delete = || api.send(ask("DELETE", "/api/keys/key-1").bearer(&token));
    let deleted = delete().await;
    assert_eq!((deleted.status.as_u16(), deleted.body.len()), (204, 0));
    delete().await.refuses(404, "not_found", "");
    api.send(ask("DELETE", "/api/keys/a%20b").bearer(&token)).await.refuses(400, "invalid_request", "id");
}

#[tokio::test]
async fn a_keys_fields_are_refused_by_name() {
    let api = api().await;
    let token = api.token().await;
    for (body, field) in [
        (json!({"scopes": ["send"]}), "name"),
        (json!({"name": "a"}), "scopes"),
        (json!({"name": "a", "scopes": []}), "scopes"),
        (json!({"name": "a", "scopes": "send"}), "scopes"),
        (json!({"name": "a", "scopes": ["send", "send"]}), "scopes"),
        (json!({"name": "a", "scopes": ["sned"]}), "scopes"),
        (json!({"name": "a", "scopes": ["send"], "spool": "a b"}), "spool"),
        (json!({"name": "a", "scopes": ["send"], "queuePrefix": "-"}), "queuePrefix"),
        (json!({"name": "a", "scopes": ["send"], "expiresAt": "2001-01-01T00:00:00Z"}), "expiresAt"),
        (json!({"name": "a", "scopes": ["send"], "expiresAt": 5}), "expiresAt"),
        (json!({"name": "a", "scopes": ["send"], "secret": "mine"}), "secret"),
    ] {
        api.send(ask("POST", "/api/keys").bearer(&token).json(body)).await.refuses(
            400,
            "invalid_request",
            field,
        );
    }
}

#[tokio::test]
async fn keys_come_in_pages() {
    let api = api().await;
    let token = api.token().await;
    for n in 0..5 {
        let body = json!({"name": format!("key {n}"), "scopes": ["send"]});
        assert_eq!(api.send(ask("POST", "/api/keys").bearer(&token).json(body)).await.status, 201);
    }
    let (mut names, mut path) = (Vec::new(), "/api/keys?limit=2".to_owned());
    for _ in 0..3 {
        let page = api.send(ask("GET", &path).bearer(&token)).await.json();
        names.extend(page["keys"].as_array().expect("a list").iter().map(|key| key["name"].clone()));
        match page["next"].as_str() {
            Some(cursor) => path = format!("/api/keys?limit=2&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(names, ["key 0", "key 1", "key 2", "key 3", "key 4"]);
    let elsewhere = path.replace("keys", "spools");
    api.send(ask("GET", &elsewhere).bearer(&token)).await.refuses(400, "invalid_request", "cursor");
}

#[tokio::test]
async fn a_spool_is_created_with_both_numbers_and_says_what_they_promise() {
    let api = api().await;
    let token = api.token().await;
    let answer = api
        .send(
            ask("POST", "/api/spools")
                .bearer(&token)
                .text(r#"{"name":"orders","numReplicas":3.0,"numSync":10e-1}"#),
        )
        .await;
    assert_eq!((answer.status.as_u16(), answer.header("location")), (201, "/api/spools/orders"));
    let shown = api.send(ask("GET", "/api/spools/orders").bearer(&token)).await.json();
    assert_eq!(answer.json(), shown);
    assert_eq!((&shown["numReplicas"], &shown["numSync"]), (&json!(3), &json!(1)));
    assert_eq!(shown["createdAt"], "2025-12-01T00:00:00.123Z");
    assert_eq!(shown["writableWithOneNodeLost"], true);
    assert!(shown["promise"].as_str().is_some_and(|words| words.contains("2 of 3 nodes")), "{shown}");
    assert_eq!(
        shown["copies"][0],
        json!({"alias": "node-1", "role": "primary", "reachable": true, "confirmedPosition": "2.17", "behindEntries": 0, "behindSeconds": 0.0})
    );
    let list = api.send(ask("GET", "/api/spools").bearer(&token)).await.json();
    let names: Vec<_> =
        list["spools"].as_array().expect("a list").iter().map(|spool| spool["name"].clone()).collect();
    assert_eq!(names, ["default", "orders"]);
}

#[tokio::test]
async fn a_spools_numbers_are_refused_by_name() {
    let api = api().await;
    let token = api.token().await;
    for (body, field) in [
        (r#"{"name":"a","numReplicas":3,"numSync":3}"#, "numSync"),
        (r#"{"name":"a","numReplicas":1,"numSync":1}"#, "numSync"),
        (r#"{"name":"a","numReplicas":3,"numSync":-1}"#, "numSync"),
        (r#"{"name":"a","numReplicas":3,"numSync":0.5}"#, "numSync"),
        (r#"{"name":"a","numReplicas":3,"numSync":"1"}"#, "numSync"),
        (r#"{"name":"a","numReplicas":3,"numSync":null}"#, "numSync"),
        (r#"{"name":"a","numReplicas":3}"#, "numSync"),
        (r#"{"name":"a","numReplicas":3,"numSync":1,"numSync":2}"#, "numSync"),
        (r#"{"name":"a","numReplicas":5.5,"numSync":1}"#, "numReplicas"),
        (r#"{"name":"a","numReplicas":0,"numSync":0}"#, "numReplicas"),
        (r#"{"name":"a","numReplicas":6,"numSync":0}"#, "numReplicas"),
        (r#"{"name":"a","numReplicas":1e30,"numSync":0}"#, "numReplicas"),
        (r#"{"name":"a","numReplicas":true,"numSync":0}"#, "numReplicas"),
        (r#"{"name":"a b","numReplicas":3,"numSync":1}"#, "name"),
        (r#"{"name":"","numReplicas":3,"numSync":1}"#, "name"),
        (r#"{"name":"a","numReplicas":3,"numSync":1,"numsync":1}"#, "numsync"),
    ] {
        api.send(ask("POST", "/api/spools").bearer(&token).text(body)).await.refuses(
            400,
            "invalid_request",
            field,
        );
    }
    let list = api.send(ask("GET", "/api/spools").bearer(&token)).await.json();
    assert_eq!(list["spools"].as_array().map(Vec::len), Some(1), "nothing was made");
}

#[tokio::test]
async fn the_control_planes_refusals_keep_their_meaning() {
    let api = api().await;
    let token = api.token().await;
    let create = |name: &str| {
        let body = json!({"name": name, "numReplicas": 3, "numSync": 1});
        api.send(ask("POST", "/api/spools").bearer(&token).json(body))
    };
    create("default").await.refuses(409, "already_exists", "name");
    create("over-the-plan").await.refuses(403, "limit_exceeded", "numReplicas");
    create("too-few-nodes").await.refuses(503, "need_copies", "");
    create("silent").await.refuses(504, "operation_unconfirmed", "");
    let defect = create("defect").await;
    defect.refuses(500, "internal", "");
    assert!(!String::from_utf8_lossy(&defect.body).contains("relation"), "what broke inside is not told");
    api.send(ask("GET", "/api/spools/nothing").bearer(&token)).await.refuses(404, "spool_not_found", "");
    api.send(ask("GET", "/api/spools/a%20b").bearer(&token)).await.refuses(400, "invalid_request", "name");
    api.send(ask("GET", "/api/spools/%ff").bearer(&token)).await.refuses(400, "invalid_request", "name");
}

#[tokio::test]
async fn without_the_control_plane_the_answer_is_503() {
    let api = api().await;
    let token = api.token().await;
    api.fake.away.store(true, Ordering::SeqCst);
    api.send(ask("GET", "/api/account").bearer(&token)).await.refuses(503, "unavailable", "");
    let body = json!({"email": "a@b.c", "password": "long enough", "accountName": "A"});
    api.send(ask("POST", "/api/signup").json(body)).await.refuses(503, "unavailable", "");
}
