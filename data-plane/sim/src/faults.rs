//! What goes wrong, and how it is mended.

use spool::controller::Input;
use spool::event::Event;
use spool::record::Phase;

use crate::clock::{MS, SEC};
use crate::config::NetConfig;
use crate::net::End;
use crate::world::{Happening, World};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    Kill(usize),
    PowerCut(usize),
    PowerCutAll,
    Start(usize),
    Pause {
        node: usize,
        us: u64,
    },
    Resume(usize),
    Cut {
        from: End,
        to: End,
        us: u64,
    },
    /// These nodes on one side, the others on the other.
    Split {
        side: Vec<usize>,
        us: u64,
    },
    /// From every node, controller and etcd; clients still reach it.
    Isolate {
        node: usize,
        us: u64,
    },
    Mend {
        from: End,
        to: End,
    },
    EtcdDown {
        us: u64,
    },
    EtcdUp,
    SlowDisk {
        node: usize,
        us: u64,
    },
    WallJump {
        node: usize,
        ms: i64,
    },
    ControllerDies(usize),
    ControllerStarts(usize),
    Move,
    GiveUp(usize),
    Disconnect(usize, usize),
    Wipe(usize),
}

impl World {
    pub fn begin_storm(&mut self) {
        self.stormy = true;
        self.net.config = self.config.net.clone();
        self.after(0, Happening::NextFault);
    }

    pub fn next_fault(&mut self) {
        if !self.stormy {
            return;
        }
        let us = self.rng.range(self.config.fault_every / 4, self.config.fault_every * 2);
        self.after(us, Happening::NextFault);
        if let Some(fault) = self.choose_fault() {
            self.fault(fault);
        }
    }

    /// Half of the faults hit the primary, where they hurt.
    fn victim(&mut self) -> usize {
        let primary = self.etcd.record.last.as_ref().map(|last| last.member.node.clone());
        match primary.and_then(|name| self.node_index(&name)) {
            Some(at) if self.rng.percent(50) => at,
            _ => self.rng.index(self.nodes.len()),
        }
    }

    fn choose_fault(&mut self) -> Option<Fault> {
        let on = self.config.faults.clone();
        let node = self.victim();
        let other = self.rng.index(self.nodes.len());
        let short = *self.rng.pick(&[100 * MS, 500 * MS, SEC, 3 * SEC]);
        let us = self.rng.range(short / 10, short);
        let controller = self.rng.index(self.config.controllers);
        let (a, b) = (End::Node(node), End::Node(other));
        let few = ((self.nodes.len() - 1) / 2).max(1);
        let possible: Vec<(bool, Fault)> = vec![
            (on.kill, Fault::Kill(node)),
            (on.power_cut, Fault::PowerCut(node)),
            (on.power_cut_all && self.rng.one_in(3), Fault::PowerCutAll),
            (on.pause, Fault::Pause { node, us }),
            (on.partition && node != other, Fault::Split { side: vec![node], us }),
            (
                on.partition && self.nodes.len() > 3 && node != other,
                Fault::Split { side: vec![node, other], us },
            ),
            (on.isolate, Fault::Isolate { node, us: self.rng.range(SEC / 2, 5 * SEC) }),
            (on.one_way && node != other, Fault::Cut { from: a, to: b, us }),
            (on.one_way && node != other, Fault::Cut { from: b, to: a, us }),
            (on.from_etcd, Fault::Cut { from: a, to: End::Etcd, us }),
            (on.from_etcd, Fault::Cut { from: End::Etcd, to: a, us }),
            (on.from_etcd, Fault::Cut { from: a, to: End::Controller(controller), us }),
            (on.from_etcd, Fault::Cut { from: End::Controller(controller), to: a, us }),
            (on.one_way, Fault::Cut { from: End::Clients, to: a, us }),
            (on.etcd_outage, Fault::EtcdDown { us }),
            (on.slow_disk, Fault::SlowDisk { node, us }),
            // Most clocks are right, and which are wrong does not change.
            (
                on.wall_jump,
                Fault::WallJump { node: node % few, ms: self.rng.range(0, 7_200_000) as i64 - 3_600_000 },
            ),
            (on.controller_crash, Fault::ControllerDies(controller)),
            (on.planned_move, Fault::Move),
            (on.give_up, Fault::GiveUp(node)),
            (on.disconnect && node != other, Fault::Disconnect(node, other)),
            (on.wipe && self.may_wipe(), Fault::Wipe(node)),
        ];
        let possible: Vec<Fault> =
            possible.into_iter().filter(|(on, _)| *on).map(|(_, fault)| fault).collect();
        if possible.is_empty() { None } else { Some(self.rng.pick(&possible).clone()) }
    }

    /// The record is beyond its first election: before, nothing says that a disk is missing.
    fn may_wipe(&self) -> bool {
        let wiped = self.nodes.iter().filter(|node| node.wiped).count();
        wiped < self.config.wipes_max() && self.etcd.record.phase == Phase::Active
    }

    pub fn fault(&mut self, fault: Fault) {
        self.trace.line(self.now, || format!("*** {fault:?}"));
        match fault {
            Fault::Kill(node) => self.die(node, false),
            Fault::PowerCut(node) => self.die(node, true),
            Fault::PowerCutAll => (0..self.nodes.len()).for_each(|node| self.die(node, true)),
            Fault::Start(node) => {
                if self.nodes[node].process.is_none() {
                    self.start_node(node);
                }
            }
            Fault::Pause { node, us } => {
                if self.nodes[node].process.is_some() && self.nodes[node].paused_until.is_none() {
                    self.oracle.seen.pauses += 1;
                    self.nodes[node].paused_until = Some(self.now.after(us));
                    self.after(us, Happening::Fault(Fault::Resume(node)));
                }
            }
            Fault::Resume(node) => self.resume_node(node),
            Fault::Cut { from, to, us } => self.cut_for(from, to, us),
            Fault::Split { side, us } => {
                if self.rng.percent(50) {
                    for inside in &side {
                        self.cut_from_control(*inside, us);
                    }
                }
                for inside in &side {
                    for outside in (0..self.nodes.len()).filter(|node| !side.contains(node)) {
                        self.cut_for(End::Node(*inside), End::Node(outside), us);
                        self.cut_for(End::Node(outside), End::Node(*inside), us);
                    }
                }
            }
            Fault::Isolate { node, us } => {
                for other in (0..self.nodes.len()).filter(|other| *other != node) {
                    self.cut_for(End::Node(node), End::Node(other), us);
                    self.cut_for(End::Node(other), End::Node(node), us);
                }
                self.cut_from_control(node, us);
            }
            Fault::Mend { from, to } => self.net.mend(from, to),
            Fault::EtcdDown { us } => {
                self.etcd_down = true;
                self.after(us, Happening::Fault(Fault::EtcdUp));
            }
            Fault::EtcdUp => self.etcd_down = false,
            Fault::SlowDisk { node, us } => {
                let longest = *self.rng.pick(&[100 * MS, SEC, 3 * SEC]);
                let each = self.rng.range(20 * MS, longest);
                self.nodes[node].slow_disk = Some((self.now.after(us.max(SEC)), each));
            }
            Fault::WallJump { node, ms } => self.nodes[node].clock.wall_offset_ms = ms,
            Fault::ControllerDies(controller) => {
                self.stop_controller(controller);
                let us = self.rng.range(MS, 3 * SEC);
                self.after(us, Happening::Fault(Fault::ControllerStarts(controller)));
            }
            Fault::ControllerStarts(controller) => {
                if !self.control.is_up(controller) {
                    self.start_controller(controller);
                }
            }
            Fault::Move => {
                let controller = self.rng.index(self.config.controllers);
                if self.control.is_up(controller) {
                    self.feed(controller, Input::Move { target: None });
                }
            }
            // A node that shuts down.
            Fault::GiveUp(node) => {
                self.step(node, Event::GiveUpRole);
                let us = self.rng.range(MS, SEC);
                self.after(us, Happening::Fault(Fault::Kill(node)));
            }
            Fault::Disconnect(a, b) => self.disconnect(a, b),
            Fault::Wipe(node) => {
                self.die(node, true);
                self.wipe_node(node);
            }
        }
    }

    fn die(&mut self, node: usize, power: bool) {
        if self.nodes[node].process.is_some() {
            self.stop_node(node, power);
            let longest = *self.rng.pick(&[100 * MS, SEC, 5 * SEC]);
            let us = self.rng.range(MS, longest);
            self.after(us, Happening::Fault(Fault::Start(node)));
        }
    }

    fn cut_for(&mut self, from: End, to: End, us: u64) {
        self.oracle.seen.partitions += 1;
        self.net.cut(from, to);
        self.after(us, Happening::Fault(Fault::Mend { from, to }));
    }

    fn cut_from_control(&mut self, node: usize, us: u64) {
        let controllers = (0..self.config.controllers).map(End::Controller);
        for other in controllers.chain([End::Etcd]).collect::<Vec<_>>() {
            self.cut_for(End::Node(node), other, us);
            self.cut_for(other, End::Node(node), us);
        }
    }

    /// Everything works from here on.
    pub fn heal(&mut self) {
        self.trace.line(self.now, || "*** all is mended".to_owned());
        self.stormy = false;
        self.net.config = NetConfig { ordered: self.config.net.ordered, ..NetConfig::calm() };
        self.net.mend_all();
        self.etcd_down = false;
        for at in 0..self.nodes.len() {
            self.nodes[at].slow_disk = None;
            if self.nodes[at].process.is_none() {
                self.start_node(at);
            }
            self.nodes[at].paused_until = None;
            self.resume_node(at);
        }
        for controller in 0..self.config.controllers {
            if !self.control.is_up(controller) {
                self.start_controller(controller);
            }
        }
    }
}
