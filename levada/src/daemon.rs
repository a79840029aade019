//! `levada run`: opens what the plan names, starts the threads, waits for a signal, and leaves nothing behind.
//!
//! | thread | does |
//! |---|---|
//! | main | starts and ends the others, waits for signals |
//! | `levada-worker` | moves every frame (`worker`) |
//! | `levada-upkeep` | closes and opens devices, logs (`upkeep`) |
//! | `levada-http`, `levada-clerk` | the control socket (`http`), and what its clients ask for (`desk`) |
//! | `levada-vde` | lets clients into VDE directories (`plugs`) |

use crate::desk::Desk;
use crate::http;
use crate::log::{Level, Log};
use crate::os::{self, Signals};
use crate::plugs::Plugs;
use crate::report::Facts;
use crate::rundir::{self, RunDir, Taken};
use crate::upkeep::{Reopen, Upkeep};
use crate::worker::{AnyPort, Bell, Cable, Chore, Clock, Device, Order, Parts, Unit, Wake, Way, Worker};
use crate::{Failure, check};
use control::admission::Promise;
use control::config::Config;
use control::plan::{Plan, PortKind, TapPlan, VdePlan};
use control::scale::scale;
use datapath::frame::{MAX_FRAME, Pool};
use datapath::link::{Link, LinkConfig, Side};
use datapath::program::{Change, EndpointId, PortId, Program};
use datapath::switch::Switch;
use datapath::units::{Both, Instant, Rate};
use ports::Port as _;
use ports::netns::{self, Netns};
use ports::tap::{Survey, Tag, Tap, TapOptions};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// Orders that wait for the worker at most.
const ORDERS: usize = 256;
/// Chores that wait for upkeep at most; events beyond are not logged.
const CHORES: usize = 256;
/// Buffers made and touched before the first frame comes: a page fault costs as much as a frame (2.9 us). The pool makes the rest when they are
/// first needed. 0.5 MiB and 2 MiB.
const WARM_SMALL: usize = 256;
/// See [`WARM_SMALL`].
const WARM_LARGE: usize = 32;
/// Bytes of a page.
const PAGE: usize = 4096;

/// Runs the configuration in `file` until a signal ends it.
pub fn run(file: &Path) -> Result<(), Failure> {
    let (checked, warnings) = check::load(file)?;
    check::complain(&warnings);
    let plan = checked.plan.ok_or_else(|| Failure::Failed("the configuration is not good".to_owned()))?;
    let log = Log::new(&plan.name);
    // Before any other thread, so that all of them leave the signals to this one.
    let signals = Signals::block().map_err(failed("cannot wait for signals"))?;
    let rundir = take_rundir(&plan.name)?;
    let running = Running::start(&checked.config, &plan, &log, &rundir)?;
    log.ready();
    running.wait(&signals);
    let crashed = running.stop();
    drop(rundir);
    if crashed { Err(Failure::Failed("the worker has crashed; this is a fault of levada".to_owned())) } else { Ok(()) }
}

fn failed(what: &str) -> impl FnOnce(std::io::Error) -> Failure + '_ {
    move |error| Failure::Failed(format!("{what}: {error}"))
}

fn take_rundir(name: &str) -> Result<RunDir, Failure> {
    RunDir::take(&rundir::base(), name).map_err(|taken| {
        Failure::Failed(match taken {
            Taken::Running(pid) => {
                let pid = pid.map_or_else(|| "an unknown process".to_owned(), |pid| format!("process {pid}"));
                format!(
                    "instance \"{name}\" runs already as {pid}; stop it first, or give this one another [daemon] name"
                )
            }
            Taken::Io(path, error) => format!(
                "cannot use {}: {error}; run as root, or set LEVADA_RUN_DIR to a directory that you may write",
                path.display()
            ),
        })
    })
}

/// The number of the group that may look at the daemon.
fn group(config: &Config) -> Result<Option<u32>, Failure> {
    let Some(name) = &config.daemon.socket_group else { return Ok(None) };
    match os::group_number(name).map_err(failed("cannot read the system's groups"))? {
        Some(number) => Ok(Some(number)),
        None => Err(Failure::Failed(format!(
            "there is no group \"{name}\": make it (groupadd {name}), or correct [daemon] socket_group"
        ))),
    }
}

/// What was opened for a plan, before it runs.
struct Opened {
    units: Vec<Unit>,
    devices: Vec<(Device, u32)>,
    reopen: Vec<Reopen>,
    watched: Vec<Option<AnyPort>>,
    /// Devices that are there when somebody plugs in.
    plugs: Vec<(VdePlan, String, usize)>,
    facts: Facts,
}

/// The threads of a running daemon.
struct Running {
    worker: JoinHandle<()>,
    upkeep: JoinHandle<()>,
    plugs: Plugs,
    vde: JoinHandle<()>,
    inbox: SyncSender<Order>,
    bell: Bell,
    chores: SyncSender<Chore>,
    /// Becomes readable when the worker ends by itself.
    ended: UnixStream,
}

impl Running {
    fn start(config: &Config, plan: &Plan, log: &Log, rundir: &RunDir) -> Result<Running, Failure> {
        let opened = netns::roaming(|| open(plan))?;
        let mut pool = Pool::new(plan.pool);
        warm(&mut pool);
        let wake = Wake::new().map_err(failed("cannot make an epoll instance"))?;
        let bell = wake.bell();
        let (inbox, orders) = sync_channel(ORDERS);
        let (chores, errands) = sync_channel(CHORES);
        let mut units = opened.units;
        tune(&mut units, &mut pool, plan);
        let parts = Parts {
            pool,
            units,
            cables: cables(plan),
            devices: opened.devices,
            spin: plan.spin,
            wake,
            clock: Clock::start(),
            inbox: orders,
            chores: chores.clone(),
        };
        let worker = Worker::new(parts).map_err(failed("cannot watch the ports"))?;
        let group = group(config)?;
        let listener = http::listen(&rundir.socket(), group).map_err(failed("cannot listen on the control socket"))?;
        let desk = Desk::new(config.clone(), opened.facts, inbox.clone(), bell.clone());
        let plugs = Plugs::new(log.clone(), inbox.clone(), bell.clone()).map_err(failed("cannot watch VDE clients"))?;
        for (plan, label, device) in opened.plugs {
            let id = plugs.open(&plan, label).map_err(|error| Failure::Failed(error.to_string()))?;
            plugs.join(id, device);
        }
        let upkeep = Upkeep::new(plan.clone(), opened.reopen, opened.watched, log.clone(), inbox.clone(), bell.clone());
        let (ended, alive) = UnixStream::pair().map_err(failed("cannot make a socket"))?;
        let worker = spawn("levada-worker", {
            let log = log.clone();
            move || {
                let _alive = alive;
                for refused in os::hurry() {
                    log.line(Level::Warning, &format!("the worker runs without {refused}"));
                }
                worker.run();
            }
        })?;
        let upkeep = spawn("levada-upkeep", move || upkeep.run(&errands))?;
        let vde = spawn("levada-vde", {
            let plugs = plugs.clone();
            move || plugs.run()
        })?;
        let desk = Arc::new(desk);
        let complaint = log.clone();
        spawn("levada-http", move || {
            if let Err(error) = http::serve(listener, desk, group) {
                complaint.line(Level::Warning, &format!("the control socket is not served: {error}"));
            }
        })?;
        Ok(Running { worker, upkeep, plugs, vde, inbox, bell, chores, ended })
    }

    /// Waits for a signal, or for the worker to end, which it should not.
    fn wait(&self, signals: &Signals) {
        let mut fds = [PollFd::new(signals, PollFlags::IN), PollFd::new(&self.ended, PollFlags::IN)];
        // An error is an interruption by a signal that is not ours.
        while poll(&mut fds, None).is_err() {}
    }

    /// Ends the threads; devices that are not persistent end with the worker. True: it had crashed.
    fn stop(self) -> bool {
        let _ = self.inbox.send(Order::Stop);
        self.bell.ring();
        let crashed = self.worker.join().is_err();
        self.plugs.stop();
        let _ = self.vde.join();
        let _ = self.chores.send(Chore::Stop);
        let _ = self.upkeep.join();
        crashed
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Failure> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map_err(failed("cannot start a thread"))
}

/// Opens every device of the plan, and makes the switches with what the devices can do.
fn open(plan: &Plan) -> Result<Opened, Failure> {
    let mut opened = Opened {
        units: Vec::new(),
        devices: Vec::new(),
        reopen: Vec::new(),
        watched: Vec::new(),
        plugs: Vec::new(),
        facts: Facts { plan: plan.clone(), uplinks: Vec::new(), devices: Vec::new() },
    };
    let survey = Survey::default();
    for (index, switch) in plan.switches.iter().enumerate() {
        let mut program = switch.program.clone();
        let mut ways = Vec::new();
        let mut numbers = Vec::new();
        for (id, port) in switch.ports.iter().enumerate() {
            let id = PortId(id as u32);
            match &port.kind {
                &PortKind::Link { link, side } => {
                    ways.push(Way::Link(link, side));
                    numbers.push(None);
                }
                PortKind::Tap(tap) => {
                    let options = tap_options(plan, index, id, tap);
                    let tap = Tap::open_among(&options, &survey).map_err(|error| Failure::Failed(error.to_string()))?;
                    program.ports[id.0 as usize].offload = tap.features().offload;
                    opened.watched.push(tap.second());
                    let number = opened.devices.len();
                    let label = format!("{} of {}", port.locator, owner(plan, index, id));
                    opened.devices.push((Device::new(Box::new(tap), index, id), time_weight(&program, id)));
                    opened.reopen.push(Reopen { options: Some(options), label });
                    ways.push(Way::Device(number));
                    numbers.push(Some(number));
                }
                PortKind::Vde(vde) => {
                    let number = opened.devices.len();
                    let label = format!("{} of {}", port.locator, owner(plan, index, id));
                    opened.devices.push((Device::absent(index, id), time_weight(&program, id)));
                    opened.watched.push(None);
                    opened.reopen.push(Reopen { options: None, label: label.clone() });
                    opened.plugs.push((vde.clone(), label, number));
                    ways.push(Way::Device(number));
                    numbers.push(Some(number));
                }
            }
        }
        let switch = Switch::new(&program, random())
            .map_err(|error| Failure::Failed(format!("switch {}: {error}", switch.name)))?;
        opened.units.push(Unit::new(switch, ways));
        opened.facts.devices.push(numbers);
        opened.facts.uplinks.push(uplink_facts(plan, index));
    }
    Ok(opened)
}

/// Through an uplink comes what is for all endpoints, so it has the time of all of them.
fn time_weight(program: &Program, id: PortId) -> u32 {
    let is_uplink = program.uplink.as_ref().is_some_and(|u| u.port == id);
    if is_uplink { program.endpoints.len().max(1) as u32 } else { 1 }
}

/// Whose port it is: `s1/red/red1`, or `s1/uplink`.
fn owner(plan: &Plan, switch: usize, id: PortId) -> String {
    let switch = &plan.switches[switch];
    match switch.program.endpoints.iter().find(|(_, e)| e.port == id) {
        Some((e, _)) => switch.endpoint_path(EndpointId(e)),
        None => format!("{}/uplink", switch.name),
    }
}

fn tap_options(plan: &Plan, switch: usize, id: PortId, tap: &TapPlan) -> TapOptions {
    TapOptions {
        name: tap.name.clone(),
        netns: tap.netns.as_deref().map(Netns::new),
        mac: tap.mac,
        mtu: Some(tap.mtu),
        addresses: tap.addresses.clone(),
        persistent: tap.persistent,
        txqueuelen: tap.ring,
        without_ipv6: !tap.ipv6,
        tag: Tag { instance: plan.name.clone(), endpoint: owner(plan, switch, id) },
    }
}

/// What an uplink can carry: over a link of this daemon, no more than the link.
fn actual_rate(plan: &Plan, switch: usize) -> Option<Both<Rate>> {
    let switch = &plan.switches[switch];
    let uplink = switch.program.uplink.as_ref()?;
    Some(match switch.ports[uplink.port.0 as usize].kind {
        PortKind::Link { link, .. } => {
            let rate = plan.links[link].1.rate;
            Both { egress: uplink.rate.egress.min(rate), ingress: uplink.rate.ingress.min(rate) }
        }
        PortKind::Tap(_) | PortKind::Vde(_) => uplink.rate,
    })
}

fn uplink_facts(plan: &Plan, switch: usize) -> Option<(Both<Rate>, Both<Promise>)> {
    let rate = actual_rate(plan, switch)?;
    Some((rate, scale(&plan.switches[switch].program, rate)?.promise))
}

/// Where an uplink is slower than configured, tells its switch what is left of the guarantees.
fn tune(units: &mut [Unit], pool: &mut Pool, plan: &Plan) {
    for (index, unit) in units.iter_mut().enumerate() {
        let program = &plan.switches[index].program;
        let Some(rate) = actual_rate(plan, index) else { continue };
        if program.uplink.as_ref().is_none_or(|uplink| uplink.rate == rate) {
            continue;
        }
        let changes: Vec<Change> = scale(program, rate).map(|s| s.changes).unwrap_or_default();
        for change in changes {
            // It has the same tenants and endpoints, so nothing of it can be refused.
            let done = unit.switch.change(pool, Instant::ZERO, change);
            debug_assert_eq!(done, Ok(()));
        }
    }
}

fn cables(plan: &Plan) -> Vec<Cable> {
    let end = |number: usize, wanted: Side| {
        let mut ends = plan.switches.iter().enumerate().flat_map(|(s, switch)| {
            switch.ports.iter().enumerate().map(move |(id, port)| (s, PortId(id as u32), &port.kind))
        });
        ends.find_map(|(s, id, kind)| match *kind {
            PortKind::Link { link, side } if link == number && side == wanted => Some((s, id)),
            _ => None,
        })
    };
    let cable = |(number, (_, config)): (usize, &(String, LinkConfig))| {
        // The configuration's check has found both ends.
        let ends = [end(number, Side::A)?, end(number, Side::B)?];
        Some(Cable { link: Link::new(*config), ends })
    };
    plan.links.iter().enumerate().filter_map(cable).collect()
}

/// Makes some buffers and touches their pages.
fn warm(pool: &mut Pool) {
    for (count, len) in [(WARM_SMALL, PAGE / 4), (WARM_LARGE, MAX_FRAME)] {
        let frames: Vec<_> = (0..count).map_while(|_| pool.alloc(len)).collect();
        for frame in frames {
            for byte in pool.bytes_mut(&frame).iter_mut().step_by(PAGE) {
                *byte = 1;
            }
            pool.free(frame);
        }
    }
}

/// A number that nobody outside can guess: the standard library keys its hash tables with such.
fn random() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::hash::RandomState::new().build_hasher().finish()
}
