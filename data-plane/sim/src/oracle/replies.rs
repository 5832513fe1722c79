//! What an answer may say, given everything that was answered before.

use spool::command::{
    Command, DeadLetterReason, Delivered, Failure, Reply, Sent, Settle, SettleResult, Written,
};
use spool::token::Token;
use types::error::Effect;
use types::{MessageId, Position};

use std::time::Duration;

use super::messages::{Lease, LeaseNo};
use super::{Asked, Oracle, When, lease_no};
use crate::clients::{DEAD, LEASE_DEFAULT, QUEUES};
use crate::clock::Time;

/// Wall clocks that do not jump differ by 400 ms at most.
const CLOCKS_DIFFER: Duration = Duration::from_millis(500);

impl Oracle {
    pub fn on_reply(&mut self, when: &When, op: u64, reply: &Reply) {
        let Some(asked) = self.asked.remove(&op) else {
            assert!(self.cancelled.contains(&op), "op {op} is answered twice: {reply:?}");
            assert!(!matches!(reply, Reply::Received { .. }), "op {op} is cancelled and receives: {reply:?}");
            return;
        };
        assert_eq!(asked.process, when.process, "another process answers op {op}");
        self.check_right(when, &asked, reply);
        match reply {
            Reply::Sent { messages, written } => self.on_sent(when, &asked, messages, written),
            Reply::Settled { results, written } => {
                if let Some(written) = written {
                    self.on_written(when, written);
                }
                self.on_settled(when, op, &asked, results);
            }
            Reply::QueuePut { written, .. } => self.on_written(when, written),
            Reply::Deleted { written } => {
                self.on_written(when, written);
                if let Command::DeleteMessage { id, .. } = &asked.command
                    && let Some(number) = self.messages.number_of_id(*id)
                {
                    self.messages.get_mut(number).settled.get_or_insert(when.time);
                }
            }
            Reply::Purged { written, .. } => {
                self.on_written(when, written);
                self.on_purged(when, &asked, written);
            }
            Reply::Received { messages } => self.on_received(when, &asked, messages),
            Reply::Extended { .. } => self.on_extended(when, &asked),
            Reply::KeyLookedUp { id } => self.on_looked_up(&asked, *id),
            Reply::Failed(failure) => self.on_failed(op, &asked, failure),
            _ => {}
        }
    }

    /// I15: whoever answers from its own memory, or acks without asking a copy, may do so now.
    fn check_right(&self, when: &When, asked: &Asked, reply: &Reply) {
        let needed = match reply {
            Reply::Failed(failure) => !matches!(failure.code.http_status(), 429 | 500 | 503 | 504),
            Reply::Sent { messages, .. } => self.k == 0 || messages.iter().all(|sent| sent.duplicate),
            Reply::Settled { written, .. } => self.k == 0 || written.is_none(),
            reply if asked.command.is_write() => self.k == 0 && !matches!(reply, Reply::Failed(_)),
            _ => true,
        };
        if needed {
            let Some(epoch) = when.epoch else { panic!("I15: a copy that is not primary answers {reply:?}") };
            assert!(
                epoch >= when.assigned,
                "I15: {epoch:?} answers while {:?} is assigned: {reply:?}",
                when.assigned
            );
        }
    }

    fn on_written(&mut self, when: &When, written: &Written) {
        let Written { position, copies } = *written;
        let synced = self.logs.synced_on(position);
        assert!(synced > u32::from(self.k), "I7: {position} is acked and synced on {synced} copies");
        assert!(copies > self.k && copies <= self.n, "H26: {copies} copies");
        assert!(
            u32::from(copies) <= synced,
            "I7: {position} is said to be on {copies} copies and is on {synced}"
        );
        assert!(
            self.logs.committed.get(&position.seq.0) == Some(&position.epoch),
            "I7: {position} is not committed"
        );
        let Some(epoch) = when.epoch else { panic!("H10: a copy that is not primary acks {position}") };
        let by = *self.served.entry(epoch).or_insert(when.process);
        assert_eq!(by, when.process, "H10: two processes ack writes in {epoch:?}");
    }

    fn on_sent(&mut self, when: &When, asked: &Asked, sent: &[Sent], written: &Written) {
        self.on_written(when, written);
        assert_eq!(sent.len(), asked.messages.len(), "as many ids as messages");
        for (number, Sent { id, duplicate }) in asked.messages.iter().zip(sent) {
            self.messages.on_seen(*number, *id, "2xx of a send");
            let position = Position { epoch: id.epoch, seq: id.seq };
            let synced = self.logs.synced_on(position);
            assert!(synced > u32::from(self.k), "I7: {id} is acked and synced on {synced} copies");
            let message = self.messages.get_mut(*number);
            assert!(message.keyed || !duplicate, "H5: message {number} has no key and is called a duplicate");
            message.acked.get_or_insert((*id, when.time));
            self.seen.sends += 1;
            self.seen.duplicates += u64::from(*duplicate);
            if !duplicate && message.attempts == 1 {
                let last = self.last_acked.insert(asked.client, *id);
                assert!(
                    last.is_none_or(|last| last < *id),
                    "H19: {id} after {last:?}, by one client in turn"
                );
            }
        }
    }

    /// What was accepted before it is gone, unless it was dead-lettered before. H24
    fn on_purged(&mut self, when: &When, asked: &Asked, written: &Written) {
        let Command::Purge { queue } = &asked.command else { panic!("nothing was to be purged") };
        for message in self.messages.in_queue(queue.as_str()) {
            if message.logged.is_none_or(|position| position.seq > written.position.seq) {
                continue;
            }
            match QUEUES.iter().any(|kind| kind.name == message.queue && kind.deliveries_max.is_some()) {
                true => message.maybe_settled = true,
                false => drop(message.settled.get_or_insert(when.time)),
            }
        }
    }

    fn on_settled(&mut self, when: &When, op: u64, asked: &Asked, results: &[SettleResult]) {
        let Command::Settle { settle, tokens, .. } = &asked.command else {
            panic!("op {op} settles nothing")
        };
        assert_eq!(results.len(), tokens.len(), "as many results as tokens");
        for ((token, result), current) in tokens.iter().zip(results).zip(&asked.current) {
            match result {
                SettleResult::Done => self.settle_done(when, op, settle, token, *current),
                SettleResult::Failed(failure) => self.settle_failed(op, settle, token, failure),
            }
        }
    }

    fn settle_done(&mut self, when: &When, op: u64, settle: &Settle, token: &Token, current: bool) {
        self.seen.settles += 1;
        let Some(lease) = self.messages.leases.get_mut(&lease_no(token)) else {
            panic!("H9: no such lease: {token}")
        };
        assert_eq!(lease.process, when.process, "H8: a token of an older tenure settles");
        let repeated = lease.settled;
        assert!(
            current || repeated || lease.asked,
            "H9: a lease that is not current settles message {}",
            lease.message
        );
        lease.settled = true;
        lease.over = true;
        let number = lease.message;
        let message = self.messages.get_mut(number);
        message.open_settles.retain(|open| *open != op);
        match settle {
            Settle::Ack if !repeated => message.settled = Some(when.time),
            Settle::Reject { .. } => message.dead = true,
            _ => {}
        }
    }

    fn settle_failed(&mut self, op: u64, settle: &Settle, token: &Token, failure: &Failure) {
        if failure.code.effect() == Effect::Unknown {
            self.settle_in_doubt(op, settle, token);
        } else if let Some(lease) = self.messages.leases.get(&lease_no(token)) {
            self.messages.get_mut(lease.message).open_settles.retain(|open| *open != op);
        }
        self.seen.stale_tokens += u64::from(failure.code.http_status() == 410);
    }

    fn on_failed(&mut self, op: u64, asked: &Asked, failure: &Failure) {
        match failure.code.effect() {
            Effect::None => self.seen.refusals += 1,
            Effect::Unknown => self.seen.unconfirmed += 1,
        }
        assert!(failure.code.http_status() != 500, "a defect: {failure:?}");
        if let Command::Settle { settle, tokens, .. } = &asked.command {
            for token in tokens {
                self.settle_failed(op, settle, token, failure);
            }
        }
        if failure.code.effect() == Effect::Unknown {
            self.in_doubt(op, asked);
        } else {
            for number in &asked.messages {
                let message = self.messages.get_mut(*number);
                message.refused += 1;
                let logged = message.logged.filter(|_| message.attempts == message.refused);
                assert_eq!(
                    logged, None,
                    "I17: message {number} is in the log and was answered {:?}",
                    failure.code
                );
            }
        }
    }

    fn on_received(&mut self, when: &When, asked: &Asked, delivered: &[Delivered]) {
        let Command::Receive { queue, lease, max, .. } = &asked.command else {
            panic!("nothing was to be received")
        };
        assert!(delivered.len() <= *max as usize, "more messages than asked for");
        for one in delivered {
            let number = self.messages.number_of(&one.payload);
            self.on_delivered(when, queue.as_str(), number, one);
            let Some(given) = &one.lease else { panic!("message {number} is delivered without a lease") };
            let until = when.mono + lease.unwrap_or(LEASE_DEFAULT);
            let no = lease_no(&given.token);
            let fresh = Lease {
                message: number,
                process: when.process,
                node: when.node,
                until,
                over: false,
                asked: false,
                settled: false,
            };
            assert!(self.messages.leases.insert(no, fresh).is_none(), "H7: lease {no:?} was given before");
            self.messages.get_mut(number).lease = Some(no);
        }
        if queue.as_str() != DEAD {
            check_order(delivered);
        }
    }

    fn on_delivered(&mut self, when: &When, queue: &str, number: u64, one: &Delivered) {
        self.messages.on_seen(number, one.id, "a delivery");
        let position = Position { epoch: one.id.epoch, seq: one.id.seq };
        let synced = self.logs.synced_on(position);
        let committed = self.logs.committed.get(&position.seq.0) == Some(&position.epoch);
        assert!(synced > u32::from(self.k) && committed, "I16 H27: {} is shown and not committed", one.id);
        let dead = queue == DEAD;
        let message = self.messages.get_mut(number);
        message.deliveries += 1;
        self.seen.deliveries += 1;
        self.seen.redeliveries += u64::from(message.deliveries > 1);
        assert_eq!(message.settled, None, "H3: message {number} is delivered after its ack was confirmed");
        assert!(
            one.deliveries <= message.deliveries,
            "H21: message {number} says {} deliveries of {}",
            one.deliveries,
            message.deliveries
        );
        assert!(
            message.queue == queue || (dead && message.queue == QUEUES[2].name),
            "message {number} is in {queue}"
        );
        assert!(
            dead || !message.dead,
            "I24: message {number} was dead-lettered and is delivered from {queue}"
        );
        if dead {
            message.dead = true;
            self.seen.dead_letters += 1;
            let Some(why) = &one.dead_letter else { panic!("I24: message {number} says not why it is dead") };
            let max = QUEUES[2].deliveries_max.unwrap_or(u32::MAX);
            assert!(
                why.reason == DeadLetterReason::Rejected || message.deliveries > max,
                "I24: message {number} was given up after {} deliveries",
                message.deliveries - 1
            );
        }
        // What another tenure has not answered is not in this one's log.
        assert!(
            message.open_settles.is_empty() || !same_tenure(one, message.lease),
            "I16: message {number} is delivered while {:?} settle it",
            message.open_settles
        );
        let (group, arrived, delay, ttl) = (message.group, message.arrived, message.delay, message.ttl);
        if let Some(arrived) = arrived {
            // The primary's clock may be off by as much as its peers' wall clocks differ, not by more. H20
            let since = when.time.since(arrived);
            assert!(
                since + CLOCKS_DIFFER >= delay,
                "H20: message {number} is delivered {since:?} after it was sent"
            );
        }
        if let (Some(ttl), Some((_, acked)), false) = (ttl, message.acked, dead || self.clocks_jump) {
            let late = when.time.since(acked);
            assert!(
                late <= ttl + CLOCKS_DIFFER,
                "H20: message {number} is delivered {late:?} after its ack, ttl {ttl:?}"
            );
        }
        if let Some(group) = group.filter(|_| !dead) {
            self.check_group(when, number, group, one.id);
        }
        let message = self.messages.get(number);
        if let Some(before) = message.lease.and_then(|no| self.messages.leases.get(&no)) {
            // Leases end with the tenure, also where the same process is elected again after another.
            let overlaps = same_tenure(one, message.lease)
                && before.process == when.process
                && !before.over
                && before.until > when.mono;
            assert!(!overlaps, "H7: message {number} is leased twice at once");
        }
    }

    /// One lease a group at a time, and the oldest first, but for those whose delay runs.
    fn check_group(&self, when: &When, number: u64, group: u8, id: MessageId) {
        let others = self.messages.iter().filter(|m| m.group == Some(group) && m.number != number && !m.dead);
        for other in others {
            if let Some(lease) = other.lease.and_then(|no| self.messages.leases.get(&no)) {
                let runs = lease.process == when.process && !lease.over && lease.until > when.mono;
                assert!(!runs, "H19: messages {} and {number} of one group are leased at once", other.number);
            }
            let waits = other.acked.is_some_and(|(older, _)| older < id)
                && other.settled.is_none()
                && other.delay.is_zero()
                && !self.messages.may_vanish(other.number);
            assert!(!waits, "H19: message {number} is delivered before {}, of one group", other.number);
        }
    }

    fn on_extended(&mut self, when: &When, asked: &Asked) {
        let Command::Extend { token, lease: span, .. } = &asked.command else {
            panic!("nothing was to be extended")
        };
        let no = lease_no(token);
        let Some(lease) = self.messages.leases.get_mut(&no) else { panic!("H9: no such lease: {token}") };
        let number = lease.message;
        assert!(lease.process == when.process && !lease.settled, "H8: an old token extends");
        lease.until = when.mono + *span;
        let current = self.messages.get(number).lease == Some(no);
        assert!(current, "H9: a lease that was superseded is extended");
    }

    fn on_looked_up(&mut self, asked: &Asked, id: Option<MessageId>) {
        let Command::LookUpKey { key, .. } = &asked.command else { panic!("nothing was to be looked up") };
        let text = std::str::from_utf8(key).ok().and_then(|text| text.strip_prefix("key-"));
        let Some(number) = text.and_then(|number| number.parse().ok()) else {
            panic!("not our key: {key:?}")
        };
        match id {
            Some(id) => {
                self.messages.on_seen(number, id, "a look-up");
                let committed = self.logs.committed.get(&id.seq.0) == Some(&id.epoch);
                assert!(committed, "H27: the look-up shows {id}, which is not committed");
            }
            None => {
                let acked =
                    self.messages.get(number).acked.filter(|(_, at): &(MessageId, Time)| *at < asked.at);
                assert_eq!(acked, None, "H6: message {number} was acked and its key is not known");
            }
        }
    }
}

fn same_tenure(one: &Delivered, before: Option<LeaseNo>) -> bool {
    let tenure = |no: LeaseNo| (no.0, no.1);
    one.lease.as_ref().map(|lease| tenure(lease_no(&lease.token))) == before.map(tenure)
}

/// Of what one receive hands out: by priority, then by acceptance.
fn check_order(delivered: &[Delivered]) {
    let place = |one: &Delivered| (std::cmp::Reverse(one.priority), one.id);
    for pair in delivered.windows(2) {
        assert!(place(&pair[0]) < place(&pair[1]), "H19: {} is handed out before {}", pair[0].id, pair[1].id);
    }
}
