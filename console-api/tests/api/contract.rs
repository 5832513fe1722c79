//! What holds for every route: the OpenAPI document is walked, so that a new route is held to it too.

use crate::client::{Answer, Api, api, ask};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Every operation of the document: method, path with its parameters filled in, the operation.
async fn operations(api: &Api) -> Vec<(String, String, Value)> {
    let document = api.send(ask("GET", "/api/openapi.json")).await.json();
    let paths = document["paths"].as_object().expect("paths").clone();
    let all = paths.into_iter().flat_map(|(path, item)| {
        let filled = path.replace("{name}", "default").replace("{id}", "key-1");
        assert!(!filled.contains('{'), "a parameter that this test does not know: {path}");
        let item = item.as_object().expect("an item").clone();
        item.into_iter().map(move |(method, operation)| (method.to_uppercase(), filled.clone(), operation))
    });
    all.collect()
}

#[tokio::test]
async fn every_path_that_needs_a_session_refuses_without_one() {
    let api = api().await;
    let mut open = BTreeSet::new();
    let mut guarded = 0;
    for (method, path, operation) in operations(&api).await {
        if operation["security"].as_array().is_none_or(Vec::is_empty) {
            open.insert(format!("{method} {path}"));
            continue;
        }
        guarded += 1;
        let own = || ask(&method, &path).origin("http://console.test").json(json!({}));
        api.send(own()).await.refuses(401, "unauthenticated", "");
        api.send(own().bearer("no.such.token")).await.refuses(401, "unauthenticated", "");
        api.send(own().header("authorization", "Basic YTpi")).await.refuses(401, "unauthenticated", "");
    }
    assert!(guarded >= 11, "{guarded}");
    let meant =
        ["POST /api/signup", "POST /api/login", "GET /api/openapi.json", "GET /healthz", "GET /readyz"];
    assert_eq!(open, meant.map(str::to_owned).into(), "open to everybody");
}

#[tokio::test]
async fn every_path_refuses_unknown_query_parameters_by_name() {
    let api = api().await;
    for (method, path, _) in operations(&api).await {
        // Signs in anew each time: one of these paths is the one that signs out.
        let login = api.log_in().await;
        let token = login.json()["token"].as_str().expect("a token").to_owned();
        let request =
            ask(&method, &format!("{path}?bogus=1")).cookie(&login.cookie()).origin("http://console.test");
        let answer = api.send(request.bearer(&token).json(json!({}))).await;
        answer.refuses(400, "invalid_request", "bogus");
    }
}

#[tokio::test]
async fn every_path_with_a_body_reads_it_strictly() {
    let api = api().await;
    let token = api.token().await;
    let mut bodies = 0;
    for (method, path, operation) in operations(&api).await {
        if operation["requestBody"].is_null() {
            continue;
        }
        bodies += 1;
        let with = |body: &str| ask(&method, &path).bearer(&token).text(body);
        api.send(with(r#"{"bogus": 1}"#)).await.refuses(400, "invalid_request", "bogus");
        api.send(with("[]")).await.refuses(400, "invalid_request", "");
        api.send(with("{")).await.refuses(400, "invalid_request", "");
        let large = format!(r#"{{"name": "{}"}}"#, "x".repeat(70_000));
        api.send(with(&large)).await.refuses(413, "payload_too_large", "");
        let form =
            ask(&method, &path).bearer(&token).header("content-type", "application/x-www-form-urlencoded");
        api.send(form).await.refuses(415, "unsupported_media_type", "");
        let packed = with("{}").header("content-encoding", "gzip");
        api.send(packed).await.refuses(415, "unsupported_media_type", "");
    }
    assert_eq!(bodies, 5);
}

#[tokio::test]
async fn wrong_methods_say_which_are_right() {
    let api = api().await;
    let allowed = |answer: &Answer| -> BTreeSet<String> {
        answer.header("allow").split(',').map(|method| method.trim().into()).collect()
    };
    for (method, path, expected) in [
        ("PATCH", "/api/keys", vec!["GET", "HEAD", "POST"]),
        ("GET", "/api/keys/key-1", vec!["DELETE"]),
        ("OPTIONS", "/api/login", vec!["POST"]),
        ("PURGE", "/api/account", vec!["GET", "HEAD"]),
    ] {
        let answer = api.send(ask(method, path)).await;
        answer.refuses(405, "method_not_allowed", "");
        assert_eq!(allowed(&answer), expected.into_iter().map(str::to_owned).collect(), "{method} {path}");
    }
    let head = api.send(ask("HEAD", "/api/account")).await;
    assert_eq!((head.status.as_u16(), head.body.len()), (401, 0));
}

#[tokio::test]
async fn unknown_paths_are_problems_too() {
    let api = api().await;
    for path in ["/", "/api", "/api/nothing", "/api/keys/", "/api/spools/a/b", "/v1/spools"] {
        api.send(ask("GET", path)).await.refuses(404, "not_found", "");
    }
}

#[tokio::test]
async fn a_request_keeps_its_id_where_it_is_fit_to_be_kept() {
    let api = api().await;
    let id = |given: &'static str| async {
        api.send(ask("GET", "/api/nothing").header("x-request-id", given)).await
    };
    let kept = id("Ab.9_:-").await;
    assert_eq!(kept.header("x-request-id"), "Ab.9_:-");
    assert_eq!(kept.json()["requestId"], "Ab.9_:-");
    for unfit in ["", "a b", "a\"b", "ä"] {
        let answer = id(unfit).await;
        assert_ne!(answer.header("x-request-id"), unfit);
        assert_eq!(answer.header("x-request-id").len(), 32);
    }
}

#[tokio::test]
async fn the_document_describes_requests_as_they_are_read() {
    let api = api().await;
    let answer = api.send(ask("GET", "/api/openapi.json")).await;
    assert_eq!(answer.header("content-type"), "application/json");
    let document = answer.json();
    let schemas = &document["components"]["schemas"];
    let create = &schemas["CreateSpoolRequest"];
    assert_eq!(create["additionalProperties"], false);
    assert_eq!(create["required"], json!(["name", "numReplicas", "numSync"]));
    assert_eq!(schemas["CreateKeyRequest"]["required"], json!(["name", "scopes"]));
    assert!(schemas["CreateKeyRequest"]["properties"]["expiresAt"]["format"] == "date-time");
    assert!(schemas["Problem"]["properties"]["requestId"].is_object());
    let text = document.to_string();
    for reference in text.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(schemas[reference].is_object(), "{reference} is referred to and not there");
    }
    for (method, path, operation) in operations(&api).await {
        assert!(
            operation["responses"]["default"]["content"]["application/problem+json"].is_object(),
            "{method} {path}"
        );
        assert!(operation["summary"].is_string(), "{method} {path}");
    }
}
