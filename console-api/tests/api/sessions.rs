//! Signing up, in and out; the cookie; other people's pages.

use crate::client::{Options, api, api_with, ask};
use crate::fake::PASSWORD;
use serde_json::json;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const OWN: &str = "http://console.test";

fn credentials(password: &str) -> serde_json::Value {
    json!({"email": "ann@example.com", "password": password})
}

#[tokio::test]
async fn signing_up_opens_a_session() {
    let api = api().await;
    let body = json!({"email": "ann@example.com", "password": "long enough", "accountName": "Acme"});
    let answer = api.send(ask("POST", "/api/signup").json(body)).await;
    assert_eq!(answer.status, 201);
    let reply = answer.json();
    let expires = reply["expiresAt"].as_str().expect("a time");
    assert!(expires.ends_with('Z') && expires.len() == "2026-01-01T00:00:00.000Z".len(), "{expires}");
    let cookie = answer.header("set-cookie");
    for part in ["capstan_refresh=", "HttpOnly", "SameSite=Strict", "Path=/api", "Max-Age="] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains("Secure"), "in clear text a browser would not keep it");
    let token = reply["token"].as_str().expect("a token");
    assert_eq!(api.send(ask("GET", "/api/account").bearer(token)).await.status, 200);
}

#[tokio::test]
async fn a_plan_can_be_chosen_when_signing_up() {
    let api = api().await;
    for plan in [json!("pro"), json!(null)] {
        let body = json!({"email": "a@b.c", "password": "long enough", "accountName": "Acme", "plan": plan});
        assert_eq!(api.send(ask("POST", "/api/signup").json(body)).await.status, 201, "{plan}");
    }
}

#[tokio::test]
async fn signing_up_names_the_field_to_blame() {
    let api = api().await;
    for (body, field) in [
        (json!({"password": "long enough", "accountName": "A"}), "email"),
        (json!({"email": "nobody", "password": "long enough", "accountName": "A"}), "email"),
        (json!({"email": "a@b@c", "password": "long enough", "accountName": "A"}), "email"),
        (json!({"email": "a @b.c", "password": "long enough", "accountName": "A"}), "email"),
        (json!({"email": "a@b.c", "password": "short", "accountName": "A"}), "password"),
        (json!({"email": "a@b.c", "password": "long enough", "accountName": " "}), "accountName"),
        (json!({"email": "a@b.c", "password": "long enough"}), "accountName"),
        (json!({"email": "a@b.c", "password": "long enough", "accountName": "A", "plan": 3}), "plan"),
        (json!({"email": "a@b.c", "password": "long enough", "accountName": "A", "plan": "gold"}), "plan"),
        (json!({"email": "a@b.c", "password": "long enough", "accountName": "A", "role": "owner"}), "role"),
    ] {
        api.send(ask("POST", "/api/signup").json(body)).await.refuses(400, "invalid_request", field);
    }
    let taken = json!({"email": "taken@b.c", "password": "long enough", "accountName": "A"});
    api.send(ask("POST", "/api/signup").json(taken)).await.refuses(409, "already_exists", "email");
}

#[tokio::test]
async fn a_wrong_password_is_refused_without_a_cookie() {
    let api = api().await;
    let answer = api.send(ask("POST", "/api/login").json(credentials("wrong"))).await;
    answer.refuses(401, "unauthenticated", "");
    assert!(!answer.headers.contains_key("set-cookie"));
    assert!(!String::from_utf8_lossy(&answer.body).contains("API key"));
}

#[tokio::test]
async fn too_many_attempts_do_not_reach_the_control_plane() {
    let api = api_with(Options { per_email: 2, ..Options::default() }).await;
    for _ in 0..2 {
        api.send(ask("POST", "/api/login").json(credentials("wrong"))).await.refuses(
            401,
            "unauthenticated",
            "",
        );
    }
    let answer = api.send(ask("POST", "/api/login").json(credentials(PASSWORD))).await;
    answer.refuses(429, "rate_limited", "");
    let wait: u32 = answer.header("retry-after").parse().expect("seconds");
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(api.fake.sign_ins.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn the_cookie_is_renewed_and_good_once() {
    let api = api().await;
    let first = api.log_in().await.cookie();
    let refresh = |cookie: String| api.send(ask("POST", "/api/refresh").cookie(&cookie).origin(OWN));
    let answer = refresh(first.clone()).await;
    assert_eq!(answer.status, 200);
    assert_ne!(answer.cookie(), first);
    let token = answer.json()["token"].as_str().expect("a token").to_owned();
    assert_eq!(api.send(ask("GET", "/api/account").bearer(&token)).await.status, 200);
    let again = refresh(first).await;
    again.refuses(401, "unauthenticated", "");
    assert!(again.header("set-cookie").contains("Max-Age=0"), "a cookie that is no good is taken away");
}

#[tokio::test]
async fn the_cookie_counts_only_from_our_own_page() {
    let api = api().await;
    let cookie = api.log_in().await.cookie();
    for path in ["/api/refresh", "/api/logout"] {
        api.send(ask("POST", path).cookie(&cookie)).await.refuses(403, "forbidden", "");
        for foreign in
            ["http://evil.test", "null", "http://console.test.evil.test", "http://", "http://console.test:81"]
        {
            api.send(ask("POST", path).cookie(&cookie).origin(foreign)).await.refuses(403, "forbidden", "");
        }
        let two = ask("POST", path).cookie(&cookie).origin(OWN).origin("http://evil.test");
        api.send(two).await.refuses(403, "forbidden", "");
        api.send(ask("POST", path).origin(OWN)).await.refuses(401, "unauthenticated", "");
    }
    let kept = api.send(ask("POST", "/api/refresh").cookie(&cookie).origin(OWN)).await;
    assert_eq!(kept.status, 200, "what was refused used nothing up");
}

#[tokio::test]
async fn another_sites_page_can_do_nothing_even_with_a_token_or_a_password() {
    let api = api().await;
    let token = api.token().await;
    let foreign = |method, path| ask(method, path).origin("https://evil.test").bearer(&token);
    api.send(foreign("DELETE", "/api/keys/key-1")).await.refuses(403, "forbidden", "");
    let log_in = ask("POST", "/api/login").origin("https://evil.test").json(credentials(PASSWORD));
    api.send(log_in).await.refuses(403, "forbidden", "");
}

#[tokio::test]
async fn a_configured_origin_is_the_only_one_and_makes_cookies_secure() {
    let api = api_with(Options { origin: Some("https://console.example.com"), ..Options::default() }).await;
    let answer = api.log_in().await;
    assert!(answer.header("set-cookie").contains("; Secure"));
    assert!(answer.header("strict-transport-security").starts_with("max-age="));
    let refresh =
        |origin: &'static str| api.send(ask("POST", "/api/refresh").cookie(&answer.cookie()).origin(origin));
    refresh(OWN).await.refuses(403, "forbidden", "");
    assert_eq!(refresh("https://console.example.com").await.status, 200);
}

#[tokio::test]
async fn a_logged_out_token_is_refused_at_once() {
    let api = api().await;
    let token = api.token().await;
    let answer = api.send(ask("POST", "/api/logout").bearer(&token)).await;
    assert_eq!(answer.status, 204);
    assert!(answer.header("set-cookie").contains("Max-Age=0"));
    api.send(ask("GET", "/api/account").bearer(&token)).await.refuses(401, "unauthenticated", "");
    api.send(ask("POST", "/api/logout").bearer(&token)).await.refuses(401, "unauthenticated", "");
}

#[tokio::test]
async fn the_cookie_alone_ends_its_session_and_no_other() {
    let api = api().await;
    let (ended, other) = (api.log_in().await, api.token().await);
    let answer = api.send(ask("POST", "/api/logout").cookie(&ended.cookie()).origin(OWN)).await;
    assert_eq!(answer.status, 204);
    let token = ended.json()["token"].as_str().expect("a token").to_owned();
    api.send(ask("GET", "/api/account").bearer(&token)).await.refuses(401, "unauthenticated", "");
    assert_eq!(api.send(ask("GET", "/api/account").bearer(&other)).await.status, 200);
}

#[tokio::test]
async fn a_session_that_was_ended_elsewhere_is_refused_within_ten_seconds() {
    let api = api().await;
    let token = api.token().await;
    // Session "session-0" is the first that this control plane opened.
    let request = proto::control::LogOutRequest { session_id: "session-0".into() };
    api.app.control.log_out(request).await.expect("it ends");
    let deadline = Instant::now() + Duration::from_secs(10);
    while api.send(ask("GET", "/api/account").bearer(&token)).await.status != 401 {
        assert!(Instant::now() < deadline, "still honoured after 10 s");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
