//! The account: its plan, what the plan holds, what is used of it.

use super::extract::{Json, NoQuery};
use super::fields::{Fields, FromFields};
use super::page::Page;
use super::problem::Problem;
use super::spools::time;
use crate::App;
use crate::sessions::Person;
use axum::extract::State;
use proto::control as wire;
use serde::Serialize;
use utoipa::ToSchema;

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AccountReply {
    id: String,
    name: String,
    #[schema(format = "date-time")]
    created_at: String,
    plan: String,
    limits: Limits,
    usage: Usage,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Of each spool.
    replicas: u32,
    spools: u32,
    queues_per_spool: u32,
    message_bytes: u32,
    request_bytes: u32,
    stored_bytes: u64,
    requests_per_second: u32,
    retention_seconds: u32,
}

#[derive(Serialize, ToSchema)]
pub struct Usage {
    spools: u32,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    name: String,
    limits: Limits,
}

#[derive(Serialize, ToSchema)]
pub struct PlanList {
    plans: Vec<Plan>,
    next: Option<String>,
}

#[derive(ToSchema)]
pub struct SetPlanRequest {
    plan: String,
}

impl FromFields for SetPlanRequest {
    const KNOWN: &'static [&'static str] = &["plan"];
    fn read(fields: &mut Fields) -> Result<Self, Problem> {
        Ok(SetPlanRequest { plan: fields.text("plan", 1..=64)? })
    }
}

impl From<wire::Plan> for Plan {
    fn from(plan: wire::Plan) -> Self {
        let limits = Limits {
            replicas: plan.replicas,
            spools: plan.spools,
            queues_per_spool: plan.queues_per_spool,
            message_bytes: plan.message_bytes,
            request_bytes: plan.request_bytes,
            stored_bytes: plan.stored_bytes,
            requests_per_second: plan.requests_per_second,
            retention_seconds: plan.retention_seconds,
        };
        Plan { name: plan.name, limits }
    }
}

fn shape(person: &Person, reply: wire::AccountReply) -> Result<axum::Json<AccountReply>, Problem> {
    let account = present(reply.account, "account")?;
    let plan = Plan::from(present(account.plan, "plan")?);
    Ok(axum::Json(AccountReply {
        id: person.account.to_string(),
        name: account.name,
        created_at: time(reply.created_ms)?,
        plan: plan.name,
        limits: plan.limits,
        usage: Usage { spools: reply.spools_used },
    }))
}

/// A part of an answer that the control plane always gives.
pub fn present<T>(part: Option<T>, name: &str) -> Result<T, Problem> {
    part.ok_or_else(|| {
        tracing::error!(part = name, "the control plane's answer lacks a part");
        Problem::internal()
    })
}

/// The account that the session is in.
#[utoipa::path(get, path = "/api/account", tag = "account", security(("session" = [])),
    responses((status = 200, body = AccountReply)))]
pub async fn get_account(
    State(app): State<App>,
    person: Person,
    _: NoQuery,
) -> Result<axum::Json<AccountReply>, Problem> {
    let request = wire::AccountRequest { account_id: person.account_bytes() };
    shape(&person, app.control.get_account(request).await?)
}

/// The plans there are, the smallest first.
#[utoipa::path(get, path = "/api/plans", tag = "account", security(("session" = [])),
    params(("limit" = Option<u32>, Query), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = PlanList)))]
pub async fn list_plans(
    State(app): State<App>,
    _: Person,
    page: Page,
) -> Result<axum::Json<PlanList>, Problem> {
    let plans = app.control.list_plans(wire::ListPlansRequest {}).await?.plans;
    let order = |plan: &wire::Plan| format!("{:010}.{:010}.{}", plan.replicas, plan.spools, plan.name);
    let (plans, next) = page.of(&[b"plans"], plans, order)?;
    Ok(axum::Json(PlanList { plans: plans.into_iter().map(Plan::from).collect(), next }))
}

/// Puts the account on another plan. A smaller one leaves existing spools as they are.
#[utoipa::path(put, path = "/api/account/plan", tag = "account", security(("session" = [])),
    request_body = SetPlanRequest, responses((status = 200, body = AccountReply)))]
pub async fn set_plan(
    State(app): State<App>,
    person: Person,
    _: NoQuery,
    Json(request): Json<SetPlanRequest>,
) -> Result<axum::Json<AccountReply>, Problem> {
    let (account_id, person_id) = (person.account_bytes(), person.id.clone());
    let request = wire::SetPlanRequest { account_id, plan: request.plan, person_id };
    shape(&person, app.control.set_plan(request).await?)
}
