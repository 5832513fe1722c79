//! What may happen, drawn at random. A number says which of what there is by then, so that a list of events means
//! something whatever is left out of it: that is what makes failures small.

use proptest::prelude::*;

#[derive(Clone, Debug)]
pub enum Event {
    /// `to`: mostly the node that was elected last, now and then any.
    Ask {
        to: u8,
        ask: Ask,
    },
    /// The client of an open request goes away.
    Cancel(u16),
    /// What was received did not reach its client.
    HandBack(u16),
    /// A letter arrives, whatever was sent before or after it.
    Deliver(u16),
    Lose(u16),
    /// A letter arrives, and will arrive again, much later.
    Repeat(u16),
    /// A letter is stuck somewhere, whatever happens to its connection.
    Hold(u16),
    /// One that was stuck, or sent twice, arrives after all.
    Bring(u16),
    /// The oldest few letters arrive.
    Mail(u8),
    /// The oldest sync of a node is done.
    Sync(u8),
    /// Every node sends every other a beat.
    Beats,
    Pass {
        ms: u16,
    },
    /// Everything arrives and every disk syncs, so many times over.
    Flow(u8),
    /// A node loses its memory, and of what it did not sync all but so many batches.
    PowerCut {
        node: u8,
        kept: u8,
    },
    Kill(u8),
    /// A node that does not run, if there is one.
    Start(u8),
    /// A connection breaks, with all that was on it.
    Break(u8, u8),
    /// Nothing reaches the elected primary and nothing leaves it, for so many flows; then a client asks it.
    CutOff {
        rounds: u8,
        ask: Ask,
    },
    Suspect,
    Move(u8),
    NewController,
    GiveUp(u8),
}

#[derive(Clone, Debug)]
pub enum Ask {
    Send { queue: u8, count: u8, delay_ms: u16 },
    SendKeyed { key: u8, variant: bool },
    Receive { queue: u8, max: u8, wait_ms: u16, lease_ms: u16 },
    Settle { how: How, which: u16, count: u8 },
    Extend { which: u16, lease_ms: u16 },
    LookUpKey(u8),
    Look(u8),
    DeleteMessage(u16),
    Put,
    Purge,
    DeleteQueue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    Ack,
    Nack(u16),
    Reject,
}

pub fn events() -> impl Strategy<Value = Vec<Event>> {
    proptest::collection::vec(event(), 200..500)
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        40 => (any::<u8>(), ask()).prop_map(|(to, ask)| Event::Ask { to, ask }),
        1 => any::<u16>().prop_map(Event::Cancel),
        2 => any::<u16>().prop_map(Event::HandBack),
        12 => any::<u16>().prop_map(Event::Deliver),
        12 => (1..12_u8).prop_map(Event::Mail),
        2 => any::<u16>().prop_map(Event::Lose),
        3 => any::<u16>().prop_map(Event::Repeat),
        4 => any::<u16>().prop_map(Event::Hold),
        4 => any::<u16>().prop_map(Event::Bring),
        10 => any::<u8>().prop_map(Event::Sync),
        6 => Just(Event::Beats),
        4 => (1..1_500_u16).prop_map(|ms| Event::Pass { ms }),
        14 => (1..4_u8).prop_map(Event::Flow),
        2 => (10..50_u8).prop_map(Event::Flow),
        1 => (any::<u8>(), 0..4_u8).prop_map(|(node, kept)| Event::PowerCut { node, kept }),
        1 => any::<u8>().prop_map(Event::Kill),
        5 => any::<u8>().prop_map(Event::Start),
        1 => any::<(u8, u8)>().prop_map(|(a, b)| Event::Break(a, b)),
        1 => (1..70_u8, ask()).prop_map(|(rounds, ask)| Event::CutOff { rounds, ask }),
        1 => Just(Event::Suspect),
        2 => any::<u8>().prop_map(Event::Move),
        1 => Just(Event::NewController),
        1 => any::<u8>().prop_map(Event::GiveUp),
    ]
}

fn ask() -> impl Strategy<Value = Ask> {
    let delay = prop_oneof![3 => Just(0), 1 => 1..3_000_u16];
    let wait = prop_oneof![2 => Just(0), 1 => 1..5_000_u16];
    let how = prop_oneof![
        3 => Just(How::Ack),
        2 => prop_oneof![Just(0), 1..3_000_u16].prop_map(How::Nack),
        1 => Just(How::Reject),
    ];
    prop_oneof![
        8 => (0..3_u8, 1..4_u8, delay).prop_map(|(queue, count, delay_ms)| Ask::Send { queue, count, delay_ms }),
        4 => (0..4_u8, prop::bool::weighted(0.2)).prop_map(|(key, variant)| Ask::SendKeyed { key, variant }),
        10 => (0..4_u8, 1..6_u8, wait, 100..4_000_u16)
            .prop_map(|(queue, max, wait_ms, lease_ms)| Ask::Receive { queue, max, wait_ms, lease_ms }),
        8 => (how, any::<u16>(), 1..4_u8).prop_map(|(how, which, count)| Ask::Settle { how, which, count }),
        2 => (any::<u16>(), 100..4_000_u16).prop_map(|(which, lease_ms)| Ask::Extend { which, lease_ms }),
        2 => (0..4_u8).prop_map(Ask::LookUpKey),
        2 => (0..4_u8).prop_map(Ask::Look),
        1 => any::<u16>().prop_map(Ask::DeleteMessage),
        1 => Just(Ask::Put),
        1 => Just(Ask::Purge),
        1 => Just(Ask::DeleteQueue),
    ]
}
