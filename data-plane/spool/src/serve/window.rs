//! What is available in a queue, in order, without scanning it again and again.
//!
//! A window holds in memory what is available before its `cursor`; what comes after is on disk only and is read
//! when the window runs empty. The cursor only goes forward over what was read (rows of messages that are
//! gone are never looked at twice), except when a window is cut back because it grew too large.

use crate::keys::{self, BLOCK_LEN, ContentNo, Msg, Order};
use crate::state::Change;
use crate::state::apply::messages_in_row;
use crate::state::rows::{Block, decode_home};
use crate::store::{Store, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use types::limits;

/// Rows read at a time.
const ROWS_PER_LOAD: usize = 128;

#[derive(Default)]
pub(super) struct Views {
    by_content: BTreeMap<ContentNo, View>,
}

/// One queue's content, once somebody has asked for its messages.
pub(super) struct View {
    /// By 9 - priority: the first is served first.
    windows: BTreeMap<u8, Window>,
    /// Delayed in the state, and handed out nevertheless: their time has come, and nothing can be written.
    pulled: BTreeSet<Msg>,
}

struct Window {
    items: BTreeMap<Order, Msg>,
    /// Everything available before it is in `items`. `None`: everything there is.
    cursor: Option<Order>,
}

impl Views {
    pub fn open(&mut self, content: ContentNo) -> &mut View {
        self.by_content.entry(content).or_insert_with(|| View {
            windows: (0..=limits::PRIORITY_MAX).map(|rank| (rank, Window::unread())).collect(),
            pulled: BTreeSet::new(),
        })
    }

    pub fn get(&self, content: ContentNo) -> Option<&View> {
        self.by_content.get(&content)
    }

    /// An applied entry changed this. `taken`: the message is held back by a lease or a chore. `listed`: it may have
    /// been available until now.
    pub fn on_change(&mut self, change: &Change, taken: bool, listed: bool) {
        match change {
            Change::Ready { content, priority, order, msg } => {
                if let Some(view) = self.by_content.get_mut(content) {
                    view.pulled.remove(msg);
                    if !taken {
                        view.offer(*priority, *order, *msg);
                    }
                }
            }
            Change::Delayed { content, msg } | Change::Gone { content, msg } => {
                if let Some(view) = self.by_content.get_mut(content) {
                    view.pulled.remove(msg);
                    if listed {
                        view.withdraw(*msg);
                    }
                }
            }
            Change::ContentGone { content } => drop(self.by_content.remove(content)),
            Change::Purged { .. } => {}
        }
    }

    /// A message is available (again).
    pub fn offer(&mut self, content: ContentNo, priority: u8, order: Order, msg: Msg) {
        if let Some(view) = self.by_content.get_mut(&content) {
            view.offer(priority, order, msg);
        }
    }

    pub fn check(&self, taken: impl Fn(Msg) -> bool) {
        for window in self.by_content.values().flat_map(|view| view.windows.values()) {
            for (order, msg) in &window.items {
                assert!(!taken(*msg), "{msg:?} is available and taken"); // I16
                assert!(window.cursor.is_none_or(|cursor| *order < cursor));
            }
        }
    }
}

impl View {
    fn offer(&mut self, priority: u8, order: Order, msg: Msg) {
        if let Some(window) = self.windows.get_mut(&(limits::PRIORITY_MAX - priority)) {
            window.offer(order, msg);
        }
    }

    /// It left without having been handed out: somebody deleted it.
    fn withdraw(&mut self, msg: Msg) {
        for window in self.windows.values_mut() {
            window.items.retain(|_, held| *held != msg);
        }
    }

    pub fn pulled(&self) -> usize {
        self.pulled.len()
    }

    /// A delayed message whose time has come. False if it is known already.
    pub fn pull(&mut self, priority: u8, order: Order, msg: Msg) -> bool {
        let new = self.pulled.insert(msg);
        if new {
            self.offer(priority, order, msg);
        }
        new
    }

    /// The first available message, taken out: priority, then order of acceptance.
    pub fn pop(
        &mut self,
        content: ContentNo,
        store: &dyn Store,
        taken: &dyn Fn(Msg) -> bool,
    ) -> Result<Option<(u8, Order, Msg)>, StoreError> {
        for (rank, window) in &mut self.windows {
            let priority = limits::PRIORITY_MAX - rank;
            if window.fill(content, priority, store, taken)?
                && let Some((order, msg)) = window.items.pop_first()
            {
                return Ok(Some((priority, order, msg)));
            }
        }
        Ok(None)
    }

    /// The first available message of each priority.
    pub fn heads(
        &mut self,
        content: ContentNo,
        store: &dyn Store,
        taken: &dyn Fn(Msg) -> bool,
    ) -> Result<Vec<Msg>, StoreError> {
        let mut heads = Vec::new();
        for (rank, window) in &mut self.windows {
            window.fill(content, limits::PRIORITY_MAX - rank, store, taken)?;
            heads.extend(window.items.first_key_value().map(|(_, msg)| *msg));
        }
        Ok(heads)
    }
}

impl Window {
    fn unread() -> Window {
        Window { items: BTreeMap::new(), cursor: Some(Order { seq: types::Seq(0), index: 0 }) }
    }

    fn offer(&mut self, order: Order, msg: Msg) {
        if self.cursor.is_some_and(|cursor| order >= cursor) {
            return;
        }
        self.items.insert(order, msg);
        let max = if self.cursor.is_none() { limits::WINDOW_MAX } else { 2 * limits::WINDOW_MAX };
        if self.items.len() > max
            && let Some((order, msg)) = self.items.last_key_value()
        {
            // What is on disk anyway is read again when its turn comes.
            let from = row_of(*order, *msg);
            self.items.split_off(&from);
            self.cursor = Some(from);
        }
    }

    /// Reads on until something is there. False: nothing is.
    fn fill(
        &mut self,
        content: ContentNo,
        priority: u8,
        store: &dyn Store,
        taken: &dyn Fn(Msg) -> bool,
    ) -> Result<bool, StoreError> {
        while self.items.is_empty()
            && let Some(cursor) = self.cursor
        {
            let mut rows = Vec::new();
            let (from, to) = (keys::ready(content, priority, cursor), keys::ready_end(content, priority));
            store.scan(&from, &to, &mut |key, home| {
                rows.push((key.to_vec(), home.to_vec()));
                rows.len() < ROWS_PER_LOAD
            })?;
            self.cursor = None;
            let more = rows.len() == ROWS_PER_LOAD;
            for (key, home) in rows {
                let Some((_, _, order)) = keys::order_of_ready(&key) else {
                    return Err(crate::codec::corrupt("a ready row"));
                };
                let whole = home.is_empty();
                let first =
                    if whole { Msg { seq: order.seq, index: order.index } } else { decode_home(&home)? };
                let Some(bytes) = store.get(&keys::block_of(first))? else {
                    return Err(crate::codec::corrupt("a ready row without its messages"));
                };
                let block = Block::decode(&bytes)?;
                for index in messages_in_row(&block, first, (content, priority), whole) {
                    let msg = Msg { seq: first.seq, index };
                    if !taken(msg) {
                        self.items.insert(if whole { Order { seq: msg.seq, index } } else { order }, msg);
                    }
                }
                let next = order.index.saturating_add(if whole { BLOCK_LEN } else { 1 });
                self.cursor = more.then_some(Order { seq: order.seq, index: next });
            }
        }
        Ok(!self.items.is_empty())
    }
}

/// Where the row that lists a message begins: a whole block, or a moved message alone.
fn row_of(order: Order, msg: Msg) -> Order {
    match order == (Order { seq: msg.seq, index: msg.index }) {
        true => Order { seq: msg.seq, index: msg.block() * BLOCK_LEN },
        false => order,
    }
}
