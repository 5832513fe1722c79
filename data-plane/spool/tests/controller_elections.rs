//! What a controller asks for, action by action.

use spool::controller::{
    Action, AssignAnswer, CasOutcome, Controller, Input, MoveError, Moved, ProbeAnswer, SealAnswer, Settings,
    StepDownAnswer,
};
use spool::event::{Assign, Probed, Sealed};
use spool::record::{Last, Member, Phase, Record};
use std::time::Duration;
use types::{CopyId, Epoch, Moment, NodeName, Position, ProcessId, Seq, SpoolId};

const SPOOL: SpoolId = SpoolId::from_u128(1);
const SECOND: Duration = Duration::from_secs(1);

fn settings() -> Settings {
    Settings::new(Duration::from_millis(400), Duration::from_millis(800))
}

/// Copy 1 is on node-1, and so on.
fn member(i: u128) -> Member {
    Member { node: NodeName(format!("node-{i}")), copy: CopyId::from_u128(i) }
}

fn process(i: u128) -> ProcessId {
    ProcessId::from_u128(100 + i)
}

/// Active in epoch 3 under copy 1.
fn active(n: u8, k: u8) -> Record {
    let members: Vec<Member> = (1..=u128::from(n)).map(member).collect();
    let last =
        Last { epoch: Epoch(3), member: member(1), process: process(1), position: Position::new(2, 10) };
    Record { epoch: Epoch(3), phase: Phase::Active, last: Some(last), ..Record::first(SPOOL, n, k, members) }
}

fn electing(record: &Record) -> Record {
    let prev = if record.prev.is_empty() { vec![record.members.clone()] } else { record.prev.clone() };
    Record { epoch: Epoch(record.epoch.0 + 1), phase: Phase::Electing, prev, ..record.clone() }
}

fn assigned(record: &Record, i: u128, position: Position) -> Record {
    let last = Last { epoch: record.epoch, member: member(i), process: process(i), position };
    Record { phase: Phase::Assigned, last: Some(last), ..record.clone() }
}

fn lost() -> Probed {
    Probed {
        copy: CopyId::from_u128(0),
        sealed: Epoch(3),
        serving: None,
        leading: None,
        heard: Some(SECOND),
        primary_refused: false,
        position: Position::new(3, 20),
    }
}

/// A controller with its clock and what it asked for last.
struct Bench {
    controller: Controller,
    now: Moment,
}

impl Bench {
    fn new(settings: Settings, record: &Record, revision: i64) -> Bench {
        let mut bench = Bench { controller: Controller::new(SPOOL, settings, 0), now: Moment(1_000_000) };
        let asked = bench.feed(Input::Record { record: record.clone(), revision });
        assert!(record.epoch == Epoch(0) || asked.is_empty(), "{asked:?}");
        bench
    }

    fn feed(&mut self, input: Input) -> Vec<Action> {
        let mut actions = Vec::new();
        self.controller.handle(self.now, input, &mut actions);
        actions
    }

    /// Lets time pass up to the next wakeup, which must come within `within`.
    fn wake(&mut self, within: Duration) -> Vec<Action> {
        let at = self.controller.next_wakeup().expect("something is due");
        assert!(
            at > self.now && at <= self.now + within,
            "{at:?} is not within {within:?} of {:?}",
            self.now
        );
        self.now = at;
        self.feed(Input::Tick)
    }

    fn pass(&mut self, span: Duration) -> Vec<Action> {
        let end = self.now + span;
        let mut actions = Vec::new();
        while self.controller.next_wakeup().is_some_and(|at| at <= end) {
            actions.extend(self.wake(span));
        }
        self.now = end;
        actions
    }

    fn record(&mut self, record: &Record, revision: i64) -> Vec<Action> {
        self.feed(Input::Record { record: record.clone(), revision })
    }

    fn cas_done(&mut self, expected_revision: i64, record: &Record, revision: i64) -> Vec<Action> {
        let outcome = CasOutcome::Done { record: record.clone(), revision };
        self.feed(Input::CasResult { expected_revision, outcome })
    }

    fn probed(&mut self, i: u128, round: u64, probed: Probed) -> Vec<Action> {
        let answer = ProbeAnswer::Probed(Probed { copy: member(i).copy, ..probed });
        self.feed(Input::ProbeReply { from: member(i), round, answer })
    }

    fn probe_failed(&mut self, i: u128, round: u64) -> Vec<Action> {
        self.feed(Input::ProbeReply { from: member(i), round, answer: ProbeAnswer::Failed })
    }

    fn sealed(&mut self, i: u128, epoch: u64, position: Position) -> Vec<Action> {
        let answer = SealAnswer::Sealed(sealed(i, epoch, position));
        self.feed(Input::SealReply { from: member(i), epoch: Epoch(epoch), answer })
    }
}

fn sealed(i: u128, epoch: u64, position: Position) -> Sealed {
    Sealed {
        epoch: Epoch(epoch),
        copy: member(i).copy,
        process: process(i),
        authoritative: true,
        position,
        chain: [0; 32],
        commit_end: position.seq,
        lineage: 0,
    }
}

fn probes(of: &[u128], round: u64) -> Vec<Action> {
    of.iter().map(|i| Action::Probe { to: member(*i), round }).collect()
}

fn seals(of: &[u128], epoch: u64) -> Vec<Action> {
    of.iter().map(|i| Action::Seal { to: member(*i), epoch: Epoch(epoch) }).collect()
}

fn cas(expected_revision: i64, new: &Record) -> Vec<Action> {
    vec![Action::CasRecord { expected_revision, new: new.clone() }]
}

fn nothing_is_waited_for() -> Action {
    Action::PublishStatus { waiting_for: vec![], reason: String::new() }
}

/// Takes a bench whose primary is gone to where epoch 4 is being sealed, at revision 8.
fn until_sealing(bench: &mut Bench, record: &Record) -> Record {
    let all: Vec<u128> = (1..=u128::from(record.n)).collect();
    assert_eq!(bench.feed(Input::Suspected { refused: true }), probes(&all, 1));
    let mut asked = bench.probe_failed(1, 1);
    for i in 2..=u128::from(record.n) {
        asked.extend(bench.probed(i, 1, lost()));
        if !asked.is_empty() {
            break;
        }
    }
    let next = electing(record);
    assert_eq!(asked, cas(7, &next));
    assert_eq!(bench.cas_done(7, &next, 8), seals(&all, 4));
    next
}

#[test]
fn the_first_election_needs_no_precheck() {
    let first = Record::first(SPOOL, 3, 1, vec![member(1), member(2), member(3)]);
    let mut bench = Bench { controller: Controller::new(SPOOL, settings(), 0), now: Moment(1) };
    let next = electing(&first);
    assert_eq!(bench.record(&first, 5), cas(5, &next));
    // The watch may be quicker than the answer of the Txn.
    assert_eq!(bench.record(&next, 6), vec![]);
    assert_eq!(bench.cas_done(5, &next, 6), seals(&[1, 2, 3], 1));
    assert_eq!(bench.sealed(3, 1, Position::ZERO), vec![]);
    let done = assigned(&next, 2, Position::ZERO);
    assert_eq!(bench.sealed(2, 1, Position::ZERO), cas(6, &done));
    let assign = Assign {
        epoch: Epoch(1),
        members: first.members.clone(),
        process: process(2),
        position: Position::ZERO,
        prev_last: None,
        commit_end: Seq(0),
        lineage: 0,
        record_revision: 9,
    };
    assert_eq!(bench.cas_done(6, &done, 9), vec![Action::Assign { to: member(2), assign }]);
    assert!(!bench.controller.is_idle());
    let active = Record { phase: Phase::Active, ..done };
    assert_eq!(bench.record(&active, 10), vec![nothing_is_waited_for()]);
    assert!(bench.controller.is_idle());
    assert_eq!(bench.controller.next_wakeup(), None);
}

#[test]
fn a_killed_primary_is_replaced_by_the_furthest_of_enough() {
    let record = active(3, 1);
    let mut bench = Bench::new(settings(), &record, 7);
    let next = until_sealing(&mut bench, &record);
    // One of the others does not suffice: the entry that it lacks may be on the one that is silent. E4
    assert_eq!(bench.sealed(2, 4, Position::new(3, 30)), vec![]);
    let done = assigned(&next, 3, Position::new(3, 31));
    assert_eq!(bench.sealed(3, 4, Position::new(3, 31)), cas(8, &done));
    let Some(Action::Assign { to, assign }) = bench.cas_done(8, &done, 9).pop() else { panic!("no Assign") };
    assert_eq!((to, assign.record_revision, assign.prev_last), (member(3), 9, record.last));
    assert_eq!(assign.commit_end, Seq(31));
}

#[test]
fn the_last_epoch_decides_before_the_length() {
    let record = active(3, 1);
    let mut bench = Bench::new(settings(), &record, 7);
    let next = until_sealing(&mut bench, &record);
    let long = Sealed { commit_end: Seq(10), ..sealed(2, 4, Position::new(2, 99)) };
    let answer = SealAnswer::Sealed(long);
    bench.feed(Input::SealReply { from: member(2), epoch: Epoch(4), answer });
    // E5
    assert_eq!(bench.sealed(3, 4, Position::new(3, 11)), cas(8, &assigned(&next, 3, Position::new(3, 11))));
}

#[test]
fn the_last_primarys_own_copy_suffices_on_its_own_disk_only() {
    let record = active(3, 1);
    let mut bench = Bench::new(settings(), &record, 7);
    let next = until_sealing(&mut bench, &record);
    // Another disk in the same node; a copy that doubts itself; one that lost what it had. E3
    let foreign = Sealed { copy: CopyId::from_u128(77), ..sealed(1, 4, Position::new(3, 40)) };
    let doubtful = Sealed { authoritative: false, ..sealed(1, 4, Position::new(3, 40)) };
    let behind = sealed(1, 4, Position::new(2, 9));
    for answer in [foreign, doubtful, behind] {
        let answer = SealAnswer::Sealed(answer);
        assert_eq!(bench.feed(Input::SealReply { from: member(1), epoch: Epoch(4), answer }), vec![]);
    }
    assert_eq!(bench.sealed(1, 4, Position::new(2, 10)), cas(8, &assigned(&next, 1, Position::new(2, 10))));
}

#[test]
fn a_primary_that_answers_is_left_alone() {
    let mut bench = Bench::new(settings(), &active(3, 1), 7);
    assert_eq!(bench.feed(Input::Suspected { refused: false }), probes(&[1, 2, 3], 1));
    bench.probed(2, 1, lost());
    assert_eq!(bench.probed(3, 1, lost()), vec![], "the primary may still answer");
    let serving = Probed { serving: Some(Epoch(3)), ..lost() };
    assert_eq!(bench.probed(1, 1, serving), vec![nothing_is_waited_for()]);
    assert!(bench.controller.is_idle());
    // The next complaint is looked into a little later; a refused connection at once.
    assert_eq!(bench.feed(Input::Suspected { refused: false }), vec![]);
    assert_eq!(bench.wake(SECOND), probes(&[1, 2, 3], 2));
    bench.probed(1, 2, Probed { serving: Some(Epoch(3)), ..lost() });
    assert_eq!(bench.feed(Input::Suspected { refused: true }), probes(&[1, 2, 3], 3));
}

/// It waits for promises: what it says of itself is no reason to depose it.
#[test]
fn a_primary_that_leads_without_serving_is_deposed_when_the_others_have_lost_it() {
    let leads = Probed { leading: Some(Epoch(3)), ..lost() };
    let heard = Probed { heard: Some(Duration::from_millis(90)), ..lost() };
    let record = active(3, 1);
    let mut bench = Bench::new(settings(), &record, 7);
    bench.feed(Input::Suspected { refused: false });
    bench.probed(1, 1, leads.clone());
    bench.probed(2, 1, lost());
    assert_eq!(bench.probed(3, 1, lost()), cas(7, &electing(&record)));

    // Nobody could take over without its log.
    for record in [active(1, 0), active(3, 0)] {
        let mut bench = Bench::new(settings(), &record, 7);
        bench.feed(Input::Suspected { refused: false });
        assert_eq!(bench.probed(1, 1, leads.clone()), vec![nothing_is_waited_for()]);
        assert!(bench.controller.is_idle());
    }

    // The one other copy of 2/1 is back from a pause, and hears it again.
    let mut bench = Bench::new(settings(), &active(2, 1), 7);
    bench.feed(Input::Suspected { refused: false });
    for round in 1..10 {
        bench.probed(1, round, leads.clone());
        let asked = bench.probed(2, round, heard.clone());
        assert_eq!(asked.len(), usize::from(bench.controller.is_idle()), "{asked:?}");
        if bench.controller.is_idle() {
            return;
        }
        bench.wake(5 * SECOND);
    }
    panic!("the suspicion stays: {:?}", bench.controller);
}

#[test]
fn a_silent_primary_is_deposed_once_the_round_is_over() {
    let record = active(3, 1);
    let mut bench = Bench::new(settings(), &record, 7);
    bench.feed(Input::Suspected { refused: false });
    bench.probed(2, 1, lost());
    assert_eq!(bench.probed(3, 1, lost()), vec![]);
    assert_eq!(bench.wake(settings().probe_wait), cas(7, &electing(&record)));
}

#[test]
fn no_epoch_is_spent_while_too_few_copies_answer() {
    let mut bench = Bench::new(settings(), &active(3, 1), 7);
    bench.feed(Input::Suspected { refused: true });
    bench.probe_failed(1, 1);
    bench.probe_failed(3, 1);
    let waiting_for = vec![NodeName::from("node-1"), NodeName::from("node-3")];
    let asked = bench.probed(2, 1, lost());
    assert!(
        matches!(&asked[..], [Action::PublishStatus { waiting_for: w, .. }] if *w == waiting_for),
        "{asked:?}"
    );
    // It goes on asking, and says nothing twice.
    let asked = bench.pass(20 * SECOND);
    let probes = asked.iter().filter(|action| matches!(action, Action::Probe { .. })).count();
    assert!((9..=60).contains(&probes) && asked.len() == probes + 1, "{asked:?}");
    // A node that comes back is asked at once.
    let asked = bench.feed(Input::NodeAlive { node: member(3).node, advancing: true });
    assert!(matches!(&asked[..], [Action::Probe { .. }, ..]), "{asked:?}");
}

#[test]
fn a_copy_that_hears_the_primary_outvotes_a_suspicion() {
    let mut bench = Bench::new(settings(), &active(3, 1), 7);
    bench.feed(Input::Suspected { refused: false });
    let heard = Probed { heard: Some(Duration::from_millis(90)), ..lost() };
    for round in 1..10 {
        bench.probed(2, round, lost());
        bench.probed(3, round, heard.clone());
        assert_eq!(bench.probe_failed(1, round).len(), usize::from(bench.controller.is_idle()));
        if bench.controller.is_idle() {
            return;
        }
        assert_eq!(bench.wake(5 * SECOND), probes(&[1, 2, 3], round + 1));
    }
    panic!("the suspicion stays: {:?}", bench.controller);
}

#[test]
fn one_copy_waits_for_its_node() {
    let record = active(1, 0);
    let mut bench = Bench::new(settings(), &record, 7);
    bench.feed(Input::Suspected { refused: true });
    let asked = bench.probe_failed(1, 1);
    assert!(matches!(&asked[..], [Action::PublishStatus { .. }]), "{asked:?}");
    bench.feed(Input::NodeAlive { node: member(1).node, advancing: true });
    assert_eq!(bench.probed(1, 2, Probed { heard: None, ..lost() }), cas(7, &electing(&record)));
}

#[test]
fn a_record_left_electing_beside_a_serving_primary_gives_it_its_role_back_first() {
    let left = electing(&active(3, 1));
    let mut bench = Bench::new(settings(), &left, 7);
    assert_eq!(bench.wake(3 * SECOND), probes(&[1, 2, 3], 1));
    let next = electing(&left);
    assert_eq!(next.prev, left.prev);
    let serving = Probed { serving: Some(Epoch(3)), ..lost() };
    assert_eq!(bench.probed(1, 1, serving), cas(7, &next));
    assert_eq!(bench.cas_done(7, &next, 8), seals(&[1], 5));
    // Its node is asked alone only while it may answer.
    let failed = Input::SealReply { from: member(1), epoch: Epoch(5), answer: SealAnswer::Failed };
    assert_eq!(bench.feed(failed), seals(&[2, 3], 5));
    let done = assigned(&next, 1, Position::new(3, 50));
    assert_eq!(bench.sealed(1, 5, Position::new(3, 50)), cas(8, &done));
}

#[test]
fn who_loses_a_compare_and_swap_follows_the_winner() {
    let record = active(3, 1);
    let mut bench = Bench::new(settings(), &record, 7);
    bench.feed(Input::Suspected { refused: true });
    bench.probed(2, 1, lost());
    bench.probe_failed(1, 1);
    bench.probed(3, 1, lost());
    let other = electing(&record);
    let outcome = CasOutcome::Other { record: other.clone(), revision: 8 };
    assert_eq!(bench.feed(Input::CasResult { expected_revision: 7, outcome }), vec![]);
    // The winner has two seconds; then its election is taken over.
    assert_eq!(bench.pass(Duration::from_millis(1_999)), vec![]);
    assert_eq!(bench.wake(SECOND), probes(&[1, 2, 3], 2));
}

#[test]
fn a_lost_answer_of_the_compare_and_swap_costs_an_epoch_and_no_more() {
    let record = active(3, 1);
    let mut bench = Bench::new(settings(), &record, 7);
    let next = until_sealing(&mut bench, &record);
    bench.sealed(3, 4, Position::new(3, 31));
    bench.sealed(2, 4, Position::new(3, 31));
    let unknown = Input::CasResult { expected_revision: 8, outcome: CasOutcome::Unknown };
    assert_eq!(bench.feed(unknown), vec![Action::ReadRecord]);
    // It was written.
    let written = assigned(&next, 2, Position::new(3, 31));
    assert_eq!(bench.record(&written, 9), vec![]);
    let asked = bench.pass(Duration::from_millis(2_050));
    assert_eq!(asked, probes(&[2, 1, 3], 2), "the last primary assigned is asked first");
    let asked = bench.probed(2, 2, Probed { serving: None, ..lost() });
    assert_eq!(asked, cas(9, &electing(&written)));
}

#[test]
fn a_newer_record_ends_an_election() {
    let record = active(3, 1);
    let mut bench = Bench::new(settings(), &record, 7);
    let next = until_sealing(&mut bench, &record);
    bench.record(&electing(&next), 11);
    assert_eq!(bench.sealed(2, 4, Position::new(3, 31)), vec![]);
    assert_eq!(bench.sealed(1, 4, Position::new(3, 31)), vec![]);
}

#[test]
fn seals_are_asked_again_and_who_is_missing_is_published() {
    let record = active(3, 1);
    let mut bench = Bench::new(settings(), &record, 7);
    until_sealing(&mut bench, &record);
    bench.sealed(2, 4, Position::new(3, 31));
    let asked = bench.pass(2 * SECOND);
    assert!(asked.contains(&seals(&[1], 4)[0]) && asked.contains(&seals(&[3], 4)[0]), "{asked:?}");
    assert!(!asked.contains(&seals(&[2], 4)[0]), "{asked:?}");
    let waiting = asked.iter().find_map(|action| match action {
        Action::PublishStatus { waiting_for, .. } => Some(waiting_for.clone()),
        _ => None,
    });
    assert_eq!(waiting, Some(vec![member(1).node, member(3).node]));
}

#[test]
fn a_higher_seal_is_outbid_by_the_next_election() {
    let record = active(3, 1);
    let mut bench = Bench::new(settings(), &record, 7);
    let next = until_sealing(&mut bench, &record);
    let stale =
        Input::SealReply { from: member(2), epoch: Epoch(4), answer: SealAnswer::StaleEpoch(Epoch(9)) };
    assert_eq!(bench.feed(stale), vec![Action::ReadRecord]);
    let asked = bench.pass(2 * SECOND);
    assert_eq!(asked, probes(&[1, 2, 3], 2));
    let asked = bench.probed(1, 2, lost());
    assert_eq!(asked, cas(8, &Record { epoch: Epoch(10), ..next }));
}

#[test]
fn a_refused_assignment_is_followed_by_another_election() {
    let record = active(3, 1);
    let mut bench = Bench::new(settings(), &record, 7);
    let next = until_sealing(&mut bench, &record);
    bench.sealed(3, 4, Position::new(3, 31));
    bench.sealed(2, 4, Position::new(3, 30));
    let done = assigned(&next, 3, Position::new(3, 31));
    bench.cas_done(8, &done, 9);
    let refused = AssignAnswer::Refused("another process".to_owned());
    assert_eq!(bench.feed(Input::AssignReply { from: member(3), epoch: Epoch(4), answer: refused }), vec![]);
    // Two seconds lie between elections.
    assert_eq!(bench.pass(Duration::from_millis(1_900)), vec![]);
    assert_eq!(bench.wake(SECOND), probes(&[3, 1, 2], 2));
    assert_eq!(bench.probed(3, 2, lost()), cas(9, &electing(&done)));
}

#[test]
fn an_assignment_is_repeated_until_it_is_answered() {
    let record = active(3, 1);
    let mut bench = Bench::new(settings(), &record, 7);
    let next = until_sealing(&mut bench, &record);
    bench.sealed(3, 4, Position::new(3, 31));
    bench.sealed(2, 4, Position::new(3, 30));
    let done = assigned(&next, 3, Position::new(3, 31));
    let first = bench.cas_done(8, &done, 9);
    bench.feed(Input::AssignReply { from: member(3), epoch: Epoch(4), answer: AssignAnswer::Failed });
    assert_eq!(bench.wake(2 * SECOND), first);
    bench.feed(Input::AssignReply { from: member(3), epoch: Epoch(4), answer: AssignAnswer::Assigned });
    assert_eq!(bench.pass(SECOND), vec![]);
    bench.record(&Record { phase: Phase::Active, ..done }, 10);
    assert!(bench.controller.is_idle());
}

#[test]
fn a_fence_that_is_due_is_waited_for_unless_the_last_primary_sealed() {
    let record = Record { fence_due: true, ..active(3, 2) };
    for last_answers in [false, true] {
        let mut bench = Bench::new(settings(), &record, 7);
        let next = until_sealing(&mut bench, &record);
        let done = |i| Record { fence_due: false, ..assigned(&next, i, Position::new(3, 31)) };
        assert_eq!(bench.sealed(2, 4, Position::new(3, 31)), vec![]);
        if last_answers {
            assert_eq!(bench.sealed(1, 4, Position::new(3, 31)), cas(8, &done(1)));
            continue;
        }
        let asked = bench.pass(settings().fence - Duration::from_millis(1));
        assert!(!asked.iter().any(|action| matches!(action, Action::CasRecord { .. })), "{asked:?}");
        assert_eq!(bench.pass(Duration::from_millis(1)), cas(8, &done(2)));
    }
}

#[test]
fn every_configuration_not_superseded_is_asked() {
    // Copy 2 was replaced by copy 9, whose barrier never committed.
    let mut record = active(2, 1);
    record.prev = vec![record.members.clone()];
    record.members = vec![member(1), member(9)];
    record.last = None;
    record.phase = Phase::Electing;
    let mut bench = Bench::new(settings(), &record, 7);
    let next = Record {
        epoch: Epoch(4),
        prev: vec![vec![member(1), member(2)], vec![member(1), member(9)]],
        ..record.clone()
    };
    assert_eq!(bench.pass(2 * SECOND), cas(7, &next));
    assert_eq!(bench.cas_done(7, &next, 8), seals(&[1, 9, 2], 4));
    assert_eq!(bench.sealed(9, 4, Position::ZERO), vec![], "the blank copy alone speaks for no old write");
    // Copy 2 is the furthest and no member: nobody may be chosen.
    assert_eq!(bench.sealed(2, 4, Position::new(3, 5)), vec![]);
    assert_eq!(bench.sealed(1, 4, Position::new(3, 5)), cas(8, &assigned(&next, 1, Position::new(3, 5))));
}

#[test]
fn a_choice_below_a_known_commit_is_refused() {
    let record = active(2, 1);
    let mut bench = Bench::new(settings(), &record, 7);
    until_sealing(&mut bench, &record);
    let knows = Sealed { commit_end: Seq(40), ..sealed(2, 4, Position::new(3, 31)) };
    let answer = SealAnswer::Sealed(knows);
    assert_eq!(bench.feed(Input::SealReply { from: member(2), epoch: Epoch(4), answer }), vec![]);
}

#[test]
fn without_num_sync_the_last_primary_is_waited_for() {
    let record = active(3, 0);
    let mut bench = Bench::new(settings(), &record, 7);
    bench.feed(Input::NodeAlive { node: member(1).node, advancing: false });
    bench.feed(Input::Suspected { refused: true });
    bench.probed(2, 1, lost());
    bench.probed(3, 1, lost());
    let asked = bench.probe_failed(1, 1);
    let waits = |a: &Action| matches!(a, Action::PublishStatus { waiting_for, .. } if *waiting_for == [member(1).node]);
    assert!(asked.len() == 1 && waits(&asked[0]), "{asked:?}");
    assert!(!bench.pass(60 * SECOND).iter().any(|action| matches!(action, Action::CasRecord { .. })));
}

#[test]
fn a_lossy_election_waits_for_the_grace_and_counts_a_lineage() {
    let record = active(3, 0);
    let mut bench = Bench::new(Settings { lossy: true, ..settings() }, &record, 7);
    bench.feed(Input::NodeAlive { node: member(1).node, advancing: false });
    let next = until_sealing(&mut bench, &record);
    assert_eq!(bench.sealed(2, 4, Position::new(3, 31)), vec![]);
    bench.sealed(3, 4, Position::new(3, 30));
    // Its node wakes up in the last moment, and falls silent again.
    bench.pass(Duration::from_millis(4_900));
    bench.feed(Input::NodeAlive { node: member(1).node, advancing: true });
    let asked = bench.pass(5 * SECOND);
    assert!(!asked.iter().any(|action| matches!(action, Action::CasRecord { .. })), "{asked:?}");
    let done = Record { lineage: 1, ..assigned(&next, 2, Position::new(3, 31)) };
    assert_eq!(bench.feed(Input::NodeAlive { node: member(1).node, advancing: false }), cas(8, &done));
}

#[test]
fn a_planned_move_asks_the_primary_to_step_down_and_elects_the_target_among_equals() {
    let record = active(3, 1);
    let mut bench = Bench::new(settings(), &record, 7);
    let target = Some(member(3).node);
    assert_eq!(bench.feed(Input::Move { target }), probes(&[3], 1));
    let step_down = Action::StepDown { to: member(1), epoch: Epoch(3), target: member(3).copy };
    assert_eq!(bench.probed(3, 1, Probed { heard: Some(Duration::ZERO), ..lost() }), vec![step_down]);
    let end = Position::new(3, 60);
    let next = electing(&record);
    let reply = StepDownAnswer::SteppedDown(end);
    let input = Input::StepDownReply { from: member(1), epoch: Epoch(3), answer: reply };
    assert_eq!(bench.feed(input), cas(7, &next));
    assert_eq!(bench.cas_done(7, &next, 8), seals(&[1, 2, 3], 4));
    // The old primary's copy alone would suffice, but the target is on its way.
    assert_eq!(bench.sealed(1, 4, end), vec![]);
    let done = assigned(&next, 3, end);
    assert_eq!(bench.sealed(3, 4, end), cas(8, &done));
    assert!(matches!(&bench.cas_done(8, &done, 9)[..], [Action::Assign { to, .. }] if *to == member(3)));
    let moved = Moved { epoch: Epoch(4), from: member(1).node, to: member(3).node };
    let asked = bench.record(&Record { phase: Phase::Active, ..done }, 10);
    assert!(asked.contains(&Action::MoveDone { outcome: Ok(moved) }), "{asked:?}");
}

#[test]
fn a_move_without_a_target_takes_the_furthest_that_answers() {
    let mut bench = Bench::new(settings(), &active(3, 1), 7);
    assert_eq!(bench.feed(Input::Move { target: None }), probes(&[2, 3], 1));
    bench.probed(2, 1, lost());
    let step_down = Action::StepDown { to: member(1), epoch: Epoch(3), target: member(3).copy };
    assert_eq!(bench.probed(3, 1, Probed { position: Position::new(3, 21), ..lost() }), vec![step_down]);
}

#[test]
fn a_move_that_cannot_be_is_refused_at_once() {
    let refused = |bench: &mut Bench, target: Option<u128>| {
        let target = target.map(|i| member(i).node);
        match bench.feed(Input::Move { target }).pop() {
            Some(Action::MoveDone { outcome }) => outcome,
            other => panic!("{other:?}"),
        }
    };
    let mut bench = Bench::new(settings(), &active(3, 1), 7);
    assert_eq!(refused(&mut bench, Some(7)), Err(MoveError::NotAMember { node: member(7).node }));
    let there = Moved { epoch: Epoch(3), from: member(1).node, to: member(1).node };
    assert_eq!(refused(&mut bench, Some(1)), Ok(there));
    let mut bench = Bench::new(settings(), &active(1, 0), 7);
    assert_eq!(refused(&mut bench, None), Err(MoveError::NoOther));
    let mut bench = Bench::new(settings(), &electing(&active(3, 1)), 7);
    assert_eq!(refused(&mut bench, None), Err(MoveError::NoPrimary));
    // Nobody steps down for a copy that does not answer.
    let mut bench = Bench::new(settings(), &active(3, 1), 7);
    bench.feed(Input::Move { target: Some(member(2).node) });
    assert_eq!(bench.probe_failed(2, 1), vec![Action::MoveDone { outcome: Err(MoveError::Unreachable) }]);
    assert!(bench.controller.is_idle());
}

#[test]
fn a_primary_that_dies_while_it_steps_down_is_replaced() {
    let record = active(3, 1);
    let mut bench = Bench::new(settings(), &record, 7);
    bench.feed(Input::Move { target: Some(member(2).node) });
    bench.probed(2, 1, lost());
    let failed = Input::StepDownReply { from: member(1), epoch: Epoch(3), answer: StepDownAnswer::Failed };
    assert_eq!(bench.feed(failed), probes(&[1, 2, 3], 2));
    bench.probe_failed(1, 2);
    bench.probed(2, 2, lost());
    let next = electing(&record);
    assert_eq!(bench.probed(3, 2, lost()), cas(7, &next));
    bench.cas_done(7, &next, 8);
    bench.sealed(3, 4, Position::new(3, 31));
    let done = assigned(&next, 2, Position::new(3, 31));
    assert_eq!(
        bench.sealed(2, 4, Position::new(3, 31)),
        cas(8, &done),
        "the target is preferred among equals"
    );
}
