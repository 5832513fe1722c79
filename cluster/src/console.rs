//! A client of the console's API: what a person does on the page, a launcher and a test do here.

use crate::api::{Failure, Reply, finish};
use crate::random;
use crate::state::{FirstAccount, Login};
use anyhow::Context;
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};
use std::time::Duration;

const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const SCOPES: [&str; 4] = ["send", "receive", "read", "manage"];

#[derive(Clone, Debug)]
pub struct Console {
    http: reqwest::Client,
    base: String,
    /// Of a signed-in person.
    token: Option<String>,
}

impl Console {
    pub fn new(base: &str) -> Console {
        let http = reqwest::Client::builder().timeout(ANSWER_WITHIN).build();
        Console {
            http: http.expect("a client without TLS has nothing to load"),
            base: base.trim_end_matches('/').to_owned(),
            token: None,
        }
    }

    pub async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Reply, Failure> {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.to_string());
        }
        finish(request).await
    }

    async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        self.request(method, path, body).await?.json()
    }

    pub async fn sign_up(&self, login: &Login, account_name: &str, plan: &str) -> anyhow::Result<Console> {
        let Login { email, password } = login;
        let body = json!({ "email": email, "password": password, "accountName": account_name, "plan": plan });
        let session = self.call(Method::POST, "/api/signup", Some(&body)).await.context("signing up")?;
        self.with_session(&session)
    }

    pub async fn log_in(&self, login: &Login) -> anyhow::Result<Console> {
        let body = json!({ "email": login.email, "password": login.password });
        let session = self.call(Method::POST, "/api/login", Some(&body)).await.context("logging in")?;
        self.with_session(&session)
    }

    fn with_session(&self, session: &Value) -> anyhow::Result<Console> {
        let token = session["token"].as_str().context("a session has a token")?;
        Ok(Console { token: Some(token.to_owned()), ..self.clone() })
    }

    pub async fn account(&self) -> Result<Value, Failure> {
        self.call(Method::GET, "/api/account", None).await
    }

    pub async fn set_plan(&self, plan: &str) -> Result<Value, Failure> {
        self.call(Method::PUT, "/api/account/plan", Some(&json!({ "plan": plan }))).await
    }

    /// The secret, which is shown this once.
    pub async fn create_key(&self, name: &str) -> anyhow::Result<String> {
        let body = json!({ "name": name, "scopes": SCOPES });
        let key = self.call(Method::POST, "/api/keys", Some(&body)).await.context("making an API key")?;
        Ok(key["secret"].as_str().context("a new key has a secret")?.to_owned())
    }

    pub async fn create_spool(&self, name: &str, replicas: u32, sync: u32) -> Result<Value, Failure> {
        let body = json!({ "name": name, "numReplicas": replicas, "numSync": sync });
        self.call(Method::POST, "/api/spools", Some(&body)).await
    }

    /// Signs up somebody new, with a key for everything.
    pub async fn new_account(&self, plan: &str) -> anyhow::Result<FirstAccount> {
        let who: [u8; 5] = random::bytes();
        let who: String = who.iter().map(|byte| format!("{byte:02x}")).collect();
        let login = Login { email: format!("dev-{who}@example.com"), password: random::secret() };
        let console = self.sign_up(&login, &format!("dev {who}"), plan).await?;
        let account = console.account().await.context("looking at the account")?;
        let api_key = console.create_key("dev").await?;
        let id = account["id"].as_str().context("an account has an id")?.to_owned();
        Ok(FirstAccount { account: id, plan: plan.to_owned(), login, api_key })
    }
}
