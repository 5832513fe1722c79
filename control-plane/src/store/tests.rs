//! Against a real PostgreSQL.

use super::accounts::Person;
use super::testing::Database;
use super::*;
use crate::reconcile::SpoolRows;
use sqlx::Executor;
use types::SpoolId;
use uuid::Uuid;

const NOW: i64 = 1_800_000_000_000;
const DAY: i64 = 86_400_000;

struct Site {
    database: Database,
    store: Store,
}

/// Somebody, their session, and its refresh token's hash.
struct Someone {
    person: Person,
    session: SessionRow,
    refresh: [u8; 32],
}

async fn opened(url: &str) -> Store {
    let store = Store::new(url).expect("an address");
    store.prepare().await.expect("PostgreSQL answers");
    store
}

impl Site {
    async fn start() -> Site {
        let database = Database::create().await;
        let store = opened(&database.url).await;
        Site { database, store }
    }

    async fn sign_up(&self, email: &str, plan: &str) -> Result<Someone, StoreError> {
        let new = NewAccount { email, password_hash: "$argon2id$", name: "Acme", plan, token_key: [7; 32] };
        let refresh = *Uuid::new_v4().as_bytes();
        let refresh = [refresh, refresh].concat().try_into().expect("32 bytes");
        let session = NewSession { expires_ms: NOW + DAY, refresh_hash: refresh };
        let (session, spool) = self.store.create_account(NOW, &new, &session).await?;
        assert_eq!((spool.account, spool.name.as_str()), (session.account, "default"));
        let person = Person { id: session.person, account: session.account, password_hash: String::new() };
        Ok(Someone { person, session, refresh })
    }

    async fn someone(&self, email: &str, plan: &str) -> Someone {
        self.sign_up(email, plan).await.expect("signed up")
    }

    async fn spool(&self, who: &Person, name: &str, numbers: (u32, u32)) -> Result<SpoolRow, StoreError> {
        let new = NewSpoolRow { account: who.account, name, numbers, token_key: [8; 32] };
        self.store.create_spool(NOW, who.id, &new).await
    }

    async fn key(&self, who: &Person, account: Uuid) -> Result<KeyRow, StoreError> {
        let hash = [*Uuid::new_v4().as_bytes(); 2].concat().try_into().expect("32 bytes");
        let new = NewKey {
            account,
            person: who.id,
            name: "k".to_owned(),
            hint: "cap_abcdef".to_owned(),
            hash,
            scopes: vec!["send".to_owned()],
            spool: String::new(),
            queue_prefix: String::new(),
            expires_ms: 0,
        };
        self.store.create_key(NOW, &new).await
    }

    async fn count(&self, table: &str) -> i64 {
        let mut connection = self.database.connect().await;
        let count = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        sqlx::query_scalar(count).fetch_one(&mut connection).await.expect("counted")
    }
}

/// Code and field.
fn refusal<T>(result: Result<T, StoreError>) -> (ErrorCode, &'static str) {
    match result.err() {
        Some(StoreError::Refused { code, field, .. }) => (code, field.unwrap_or("")),
        Some(error) => panic!("{error:?}"),
        None => panic!("not refused"),
    }
}

#[tokio::test]
async fn a_plans_number_of_spools_holds_when_many_are_made_at_once() {
    let site = Site::start().await;
    let who = site.someone("a@b.c", "free").await.person;
    let names: Vec<String> = (0..12).map(|i| format!("s{i}")).collect();
    let made = futures::future::join_all(names.iter().map(|name| site.spool(&who, name, (1, 0)))).await;
    let (made, refused): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
    assert_eq!((made.len(), refused.len()), (2, 10), "the plan free holds three, the default one included");
    for refused in refused {
        assert_eq!(refusal(refused), (ErrorCode::LimitExceeded, ""));
    }
    let account = site.store.account(who.account).await.expect("there");
    assert_eq!((account.spools_used, account.plan.name.as_str()), (3, "free"));
}

#[tokio::test]
async fn a_spools_numbers_and_name_are_checked() {
    let site = Site::start().await;
    let who = site.someone("a@b.c", "starter").await.person;
    for (name, numbers, code, field) in [
        ("s", (0, 0), ErrorCode::InvalidRequest, "num_replicas"),
        ("s", (6, 0), ErrorCode::InvalidRequest, "num_replicas"),
        ("s", (u32::MAX, 0), ErrorCode::InvalidRequest, "num_replicas"),
        ("s", (1, 1), ErrorCode::InvalidRequest, "num_sync"),
        ("s", (2, 2), ErrorCode::InvalidRequest, "num_sync"),
        ("s", (3, 1), ErrorCode::LimitExceeded, "num_replicas"),
        ("default", (1, 0), ErrorCode::AlreadyExists, "name"),
    ] {
        assert_eq!(refusal(site.spool(&who, name, numbers).await), (code, field), "{name} {numbers:?}");
    }
    let made = site.spool(&who, "s", (2, 1)).await.expect("made");
    assert_eq!((made.num_replicas, made.num_sync, made.token_key), (2, 1, vec![8; 32]));
    let other = site.someone("d@e.f", "starter").await.person;
    site.spool(&other, "s", (2, 0)).await.expect("names are the account's own");
}

#[tokio::test]
async fn a_smaller_plan_keeps_what_is_there_and_refuses_more() {
    let site = Site::start().await;
    let who = site.someone("a@b.c", "scale").await.person;
    let default = site.store.spool(who.account, "default").await.expect("read").expect("there");
    assert_eq!((default.num_replicas, default.num_sync), (5, 3));
    site.spool(&who, "s", (5, 2)).await.expect("made");
    let set = async |plan: &str| site.store.set_plan(NOW, who.account, who.id, plan).await;
    assert_eq!(refusal(set("gold").await), (ErrorCode::InvalidRequest, "plan"));
    set("free").await.expect("set");
    assert_eq!(site.store.spools(who.account).await.expect("read").len(), 2);
    assert_eq!(refusal(site.spool(&who, "t", (2, 0)).await), (ErrorCode::LimitExceeded, "num_replicas"));
    site.spool(&who, "t", (1, 0)).await.expect("the third of three");
}

#[tokio::test]
async fn signing_up_is_all_or_nothing() {
    let site = Site::start().await;
    site.someone("Ann@example.com", "pro").await;
    let tables = ["accounts", "people", "members", "spools", "sessions", "refresh_tokens", "audit"];
    let mut before = Vec::new();
    for table in tables {
        before.push(site.count(table).await);
    }
    let taken = site.sign_up("ann@EXAMPLE.com", "pro").await.map(|_| ());
    assert_eq!(refusal(taken), (ErrorCode::AlreadyExists, "email"));
    let no_plan = site.sign_up("bob@example.com", "gold").await.map(|_| ());
    assert_eq!(refusal(no_plan), (ErrorCode::InvalidRequest, "plan"));
    for (table, before) in tables.into_iter().zip(before) {
        assert_eq!(site.count(table).await, before, "{table}");
    }
    let found = site.store.person_by_email("ANN@example.com").await.expect("read").expect("there");
    assert_eq!(found.password_hash, "$argon2id$");
}

#[tokio::test]
async fn a_refresh_token_is_good_once_and_its_reuse_ends_the_session() {
    let site = Site::start().await;
    let who = site.someone("a@b.c", "free").await;
    let refresh = async |used, next| site.store.refresh_session(NOW, used, next).await;
    let second = [2; 32];
    let session = refresh(who.refresh, second).await.expect("refreshed");
    assert_eq!(session, who.session);
    let ended = async || site.store.ended_sessions(NOW + 1).await.expect("read");
    assert!(ended().await.is_empty());
    assert_eq!(refusal(refresh(who.refresh, [3; 32]).await), (ErrorCode::Unauthenticated, ""));
    assert_eq!(ended().await, [who.session.id]);
    assert_eq!(refusal(refresh(second, [4; 32]).await), (ErrorCode::Unauthenticated, ""), "ended for both");
    assert_eq!(refusal(refresh([9; 32], [5; 32]).await), (ErrorCode::Unauthenticated, ""), "never given out");
}

#[tokio::test]
async fn of_two_who_use_a_refresh_token_at_once_one_is_served_and_the_session_ends() {
    let site = Site::start().await;
    let who = site.someone("a@b.c", "free").await;
    let (one, other) = tokio::join!(
        site.store.refresh_session(NOW, who.refresh, [2; 32]),
        site.store.refresh_session(NOW, who.refresh, [3; 32]),
    );
    assert_ne!(one.is_ok(), other.is_ok());
    assert_eq!(site.store.ended_sessions(NOW).await.expect("read"), [who.session.id]);
}

#[tokio::test]
async fn sessions_end_by_word_and_by_time_and_old_ones_go() {
    let site = Site::start().await;
    let who = site.someone("a@b.c", "free").await;
    let late = site.store.refresh_session(who.session.expires_ms, who.refresh, [2; 32]).await;
    assert_eq!(refusal(late), (ErrorCode::Unauthenticated, ""));
    site.store.end_session(NOW, who.session.id).await.expect("ended");
    assert_eq!(site.store.ended_sessions(NOW).await.expect("read"), [who.session.id]);
    assert_eq!(
        refusal(site.store.refresh_session(NOW, who.refresh, [3; 32]).await),
        (ErrorCode::Unauthenticated, "")
    );
    let again = NewSession { expires_ms: NOW + 3 * DAY, refresh_hash: [4; 32] };
    site.store.begin_session(NOW + 2 * DAY, &who.person, &again).await.expect("begun");
    assert_eq!((site.count("sessions").await, site.count("refresh_tokens").await), (1, 1));
}

#[tokio::test]
async fn an_account_is_nobody_elses() {
    let site = Site::start().await;
    let ann = site.someone("ann@b.c", "pro").await.person;
    let bob = site.someone("bob@b.c", "pro").await.person;
    let key = site.key(&ann, ann.account).await.expect("made");
    site.spool(&ann, "mine", (1, 0)).await.expect("made");

    assert_eq!(site.store.keys(bob.account).await.expect("read"), []);
    assert!(site.store.spool(bob.account, "mine").await.expect("read").is_none());
    let (forbidden, not_found) = ((ErrorCode::Forbidden, ""), (ErrorCode::NotFound, ""));
    let delete = async |account, person| site.store.delete_key(NOW, account, person, key.id).await;
    assert_eq!(refusal(delete(bob.account, bob.id).await), not_found, "not even that it is there");
    assert_eq!(refusal(delete(ann.account, bob.id).await), forbidden);
    assert_eq!(refusal(site.key(&bob, ann.account).await), forbidden);
    let foreign = Person { account: ann.account, ..bob.clone() };
    assert_eq!(refusal(site.spool(&foreign, "s", (1, 0)).await), forbidden);
    assert_eq!(refusal(site.store.set_plan(NOW, ann.account, bob.id, "free").await), forbidden);
    assert_eq!(site.store.keys(ann.account).await.expect("read"), [key]);
}

#[tokio::test]
async fn a_viewer_changes_nothing_and_only_an_owner_the_plan() {
    let site = Site::start().await;
    let owner = site.someone("a@b.c", "pro").await.person;
    let other = site.someone("d@e.f", "pro").await.person;
    let mut connection = site.database.connect().await;
    let mut role = async |role: &str| {
        let set = sqlx::query(
            "INSERT INTO members (account, person, role) VALUES ($1, $2, $3)
             ON CONFLICT (account, person) DO UPDATE SET role = $3",
        );
        set.bind(owner.account).bind(other.id).bind(role).execute(&mut connection).await.expect("a member");
    };
    let there = Person { account: owner.account, ..other.clone() };
    let forbidden = (ErrorCode::Forbidden, "");
    role("viewer").await;
    assert_eq!(refusal(site.key(&other, owner.account).await), forbidden);
    assert_eq!(refusal(site.spool(&there, "s", (1, 0)).await), forbidden);
    role("admin").await;
    site.key(&other, owner.account).await.expect("made");
    site.spool(&there, "s", (1, 0)).await.expect("made");
    assert_eq!(refusal(site.store.set_plan(NOW, owner.account, other.id, "free").await), forbidden);
}

#[tokio::test]
async fn nodes_are_told_everything_and_then_what_changed() {
    let site = Site::start().await;
    let who = site.someone("a@b.c", "free").await.person;
    let key = site.key(&who, who.account).await.expect("made");
    let all = site.store.changes(0).await.expect("read");
    assert_eq!((all.accounts.len(), all.keys.len(), all.spools.len()), (1, 1, 1));
    let nothing = site.store.changes(all.version).await.expect("read");
    assert_eq!(nothing.version, all.version);
    assert!(nothing.accounts.is_empty() && nothing.keys.is_empty() && nothing.spools.is_empty());

    site.spool(&who, "s", (1, 0)).await.expect("made");
    let more = site.store.changes(all.version).await.expect("read");
    assert!(more.version > all.version && more.keys.is_empty());
    assert_eq!(more.spools.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["s"]);

    site.store.delete_key(NOW, who.account, who.id, key.id).await.expect("deleted");
    assert_eq!(site.store.key_by_hash(&key.hash).await.expect("read"), None);
    let less = site.store.changes(more.version).await.expect("read");
    assert_eq!((less.removed_keys, less.keys.len()), (vec![key.id], 0));
    let all = site.store.changes(0).await.expect("read");
    assert_eq!((all.keys.len(), all.removed_keys.len()), (0, 0));
}

#[tokio::test]
async fn a_plan_that_an_operator_changes_reaches_the_nodes() {
    let site = Site::start().await;
    let who = site.someone("a@b.c", "free").await.person;
    site.someone("d@e.f", "pro").await;
    let before = site.store.directory_version().await.expect("read");
    let mut connection = site.database.connect().await;
    let change = "UPDATE plans SET requests_per_second = 7 WHERE name = 'free'";
    connection.execute(change).await.expect("changed");
    let changes = site.store.changes(before).await.expect("read");
    let told: Vec<_> = changes.accounts.iter().map(|(id, _, p)| (*id, p.requests_per_second)).collect();
    assert_eq!(told, [(who.account, 7)]);
}

#[tokio::test]
async fn a_spool_is_taken_back_until_its_placing_begins() {
    let site = Site::start().await;
    let who = site.someone("a@b.c", "free").await.person;
    let spool = site.spool(&who, "s", (1, 0)).await.expect("made");
    let version = site.store.directory_version().await.expect("read");
    assert!(site.store.take_back_spool(NOW, spool.id).await.expect("an answer"));
    assert_eq!(site.store.changes(version).await.expect("read").removed_spools, [spool.id]);
    assert!(!site.store.begin_placing(SpoolId(spool.id)).await.expect("an answer"), "it is gone");

    let spool = site.spool(&who, "s", (1, 0)).await.expect("the name is free at once");
    assert!(site.store.begin_placing(SpoolId(spool.id)).await.expect("an answer"));
    assert!(!site.store.take_back_spool(NOW, spool.id).await.expect("an answer"));
    let unplaced = async || site.store.unplaced(10).await.expect("read").into_iter().map(|row| row.id.0);
    assert!(unplaced().await.any(|id| id == spool.id));
    site.store.mark_placed(SpoolId(spool.id)).await.expect("marked");
    assert!(unplaced().await.all(|id| id != spool.id));
    let named = site.store.names(&[SpoolId(spool.id), SpoolId::from_u128(1)]).await.expect("read");
    assert_eq!(
        named.iter().map(|n| (n.account_name.as_str(), n.name.as_str())).collect::<Vec<_>>(),
        [("Acme", "s")]
    );
}

#[tokio::test]
async fn a_keys_last_use_never_goes_back() {
    let site = Site::start().await;
    let who = site.someone("a@b.c", "free").await.person;
    let key = site.key(&who, who.account).await.expect("made");
    for at in [NOW + 5, NOW + 3] {
        site.store.keys_used(&[(key.id, at), (Uuid::new_v4(), at)]).await.expect("told");
    }
    let key = site.store.key_by_hash(&key.hash).await.expect("read").expect("there");
    assert_eq!(key.last_used_ms, NOW + 5);
}

#[tokio::test]
async fn control_planes_that_start_together_migrate_once() {
    let database = Database::create().await;
    let stores = futures::future::join_all((0..3).map(|_| opened(&database.url))).await;
    for store in stores {
        let plans = store.plans().await.expect("read");
        let plans: Vec<_> = plans.iter().map(|plan| (plan.name.as_str(), plan.replicas)).collect();
        assert_eq!(plans, [("free", 1), ("starter", 2), ("pro", 3), ("scale", 5)]);
    }
}
