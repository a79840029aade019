//! `levada check`: is a configuration good, and what does it promise?

use crate::cluster::directory;
use crate::cluster::pki::credentials::Credentials;
use crate::error::Failure;
use crate::handler;
use crate::recipe::owner_of;
use crate::secrets::{hello_key, report_keys};
use control::admission::{Promise, promise};
use control::config::openflow::{MODES, OpenFlow};
use control::config::{Config, Switch};
use control::names::name_of;
use control::place::namespaces;
use control::plan::{Plan, PortKind, Underlay};
use control::problem::{self, Severity};
use control::units::{show_count, show_rate};
use control::{Checked, names};
use datapath::program::{Attachment, EndpointId, PortId, Share, TenantId};
use datapath::units::{Direction, Rate};
use ports::netns::Netns;
use ports::packet;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Reads and checks `file`; warnings and errors are rendered with their lines. Errors are a
/// failure.
pub fn load(file: &Path) -> Result<(Checked, String), Failure> {
    load_and(file, |_| {})
}

/// The same, of what more is found out of it.
fn load_and(file: &Path, more: impl FnOnce(&mut Checked)) -> Result<(Checked, String), Failure> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|e| Failure::Failed(format!("cannot read {name}: {e}")))?;
    let mut checked = control::load(&text);
    more(&mut checked);
    let mut shown = problem::render(&checked.problems, &name, &text);
    let errors = checked.problems.iter().filter(|p| p.severity == Severity::Error).count();
    if errors > 0 {
        let _ = write!(shown, "\n{name}: {}", show_count(errors, "error", "errors"));
        return Err(Failure::Failed(format!("the configuration is not good\n\n{shown}")));
    }
    Ok((checked, shown))
}

/// Reads and checks the configuration of a controller of OpenFlow switches, as [`load`] does.
pub fn load_openflow(file: &Path) -> Result<(OpenFlow, String), Failure> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|e| Failure::Failed(format!("cannot read {name}: {e}")))?;
    if !control::is_openflow(&text) {
        let remedy = "write [openflow] with name = \"edge\"; a daemon's configuration is for levada run";
        return Err(Failure::Failed(format!("{name} has no [openflow]; {remedy}")));
    }
    let checked = control::load_openflow(&text);
    let mut shown = problem::render(&checked.problems, &name, &text);
    match checked.config {
        Some(config) => Ok((config, shown)),
        None => {
            let errors = checked.problems.iter().filter(|p| p.severity == Severity::Error).count();
            let _ = write!(shown, "\n{name}: {}", show_count(errors, "error", "errors"));
            Err(Failure::Failed(format!("the configuration is not good\n\n{shown}")))
        }
    }
}

/// What a controller of OpenFlow switches is to do.
fn openflow(file: &Path, json: bool) -> Result<String, Failure> {
    let (config, warnings) = load_openflow(file)?;
    complain(&warnings);
    if let Some(tls) = &config.tls {
        for path in [&tls.certificate, &tls.key, &tls.authority].into_iter().filter(|path| !Path::new(path).exists()) {
            complain(&format!("warning: as this machine is now: {path} is not there"));
        }
    }
    for why in report_keys(control::report::keys_of_openflow(&config)).1 {
        complain(&format!("warning: as this machine is now: {why}"));
    }
    let mode = name_of(&MODES, config.mode);
    if json {
        let services: Vec<&str> = config.services.iter().map(|service| service.name.as_str()).collect();
        let summary = serde_json::json!({"version": 1, "name": config.name, "mode": mode, "services": services});
        return Ok(format!("{summary:#}\n"));
    }
    let mut out = format!("{}: good; controller \"{}\", mode {mode}\n", file.display(), config.name);
    for service in &config.services {
        let addresses: Vec<String> = service.addresses.iter().map(ToString::to_string).collect();
        let _ = writeln!(
            out,
            "  service {}  {}  policy {}, {}",
            service.name,
            addresses.join(", "),
            name_of(&names::POLICIES, service.policy),
            show_count(service.backends.len(), "backend", "backends")
        );
    }
    Ok(out)
}

/// Prints warnings, where there are any, to standard error.
pub fn complain(warnings: &str) {
    use std::io::Write as _;
    if !warnings.is_empty() {
        // Nobody may be there to read them.
        let _ = writeln!(std::io::stderr(), "{warnings}");
    }
}

/// The report on a good configuration.
pub fn check(file: &Path, json: bool) -> Result<String, Failure> {
    // What cannot be read is reported below.
    if std::fs::read_to_string(file).is_ok_and(|text| control::is_openflow(&text)) {
        return openflow(file, json);
    }
    let (checked, warnings) = load_and(file, look_for_namespaces)?;
    complain(&warnings);
    let lacking = [lacking(&checked.config), checked.plan.as_ref().map(missing).unwrap_or_default()].concat();
    for what in &lacking {
        complain(&format!("warning: as this machine is now: {what}"));
    }
    let mut summary = Summary::new(&checked);
    summary.warnings.extend(lacking);
    if json {
        let text = serde_json::to_string_pretty(&summary).map_err(|e| Failure::Failed(e.to_string()))?;
        return Ok(text + "\n");
    }
    Ok(summary.text(&file.display().to_string()))
}

/// Warns of network namespaces that are not there: each once. They may come later, or the
/// configuration may be another machine's.
fn look_for_namespaces(checked: &mut Checked) {
    let mut missing = BTreeMap::new();
    for (place, name) in namespaces(&checked.config) {
        let path = Netns::new(name).path().to_owned();
        // What may not be looked at may be there.
        let is_missing = std::fs::metadata(&path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        if is_missing {
            missing.entry(path).or_insert((place, name.to_owned()));
        }
    }
    for (place, name) in missing.into_values() {
        let netns = Netns::new(&name);
        let remedy = if netns.is_of_process() {
            "start the container first, or correct `netns`".to_owned()
        } else if netns.name().is_some() {
            format!("make it before the daemon starts (ip netns add {netns}), or correct `netns`")
        } else {
            "make it before the daemon starts, or correct `netns`".to_owned()
        };
        checked.warn(place, format!("as this machine is now: there is no network namespace {name}"), remedy);
    }
}

/// Files and the control socket's group that the configuration names, and that are not there or not
/// good on this machine. It may be checked before they come, or elsewhere.
fn lacking(config: &Config) -> Vec<String> {
    let bonds = config.switches.iter().filter_map(|switch| switch.uplink.as_ref()?.bond.as_ref());
    let secrets = bonds.filter_map(|bond| hello_key(Path::new(bond.secret_file.as_ref()?)).err());
    let group = handler::group(&config.daemon).err().map(|(what, remedy)| format!("{what}; {remedy}"));
    let secrets = group.into_iter().chain(secrets).chain(report_keys(control::report::keys(config)).1);
    let secrets: Vec<String> = secrets.collect();
    let Some(cluster) = &config.cluster else { return secrets };
    let speaks = cluster.listen.is_some();
    let certificate = speaks.then(|| Credentials::load(Path::new(&cluster.directory), &cluster.host).err()).flatten();
    let etcd = cluster.etcd.as_ref().map(directory::look).unwrap_or_default();
    let etcd = etcd.into_iter().map(|why| format!("the etcd: {why}"));
    secrets.into_iter().chain(certificate).chain(etcd).collect()
}

/// Groups and interfaces that the configuration names, and that are not on this machine, each once.
fn missing(plan: &Plan) -> Vec<String> {
    let (mut groups, mut interfaces) = (BTreeMap::new(), BTreeMap::new());
    for switch in plan.switches.values() {
        let endpoints: BTreeMap<PortId, u32> =
            switch.program.endpoints.iter().map(|(id, endpoint)| (endpoint.port, id)).collect();
        for (id, port) in switch.ports.iter() {
            let id = PortId(id);
            let named = match &port.kind {
                PortKind::Vde(vde) => {
                    if let Some(group) = &vde.group {
                        groups.entry(group).or_insert(&port.locator);
                    }
                    continue;
                }
                PortKind::VhostUser(machine) => {
                    if let Some(group) = &machine.group {
                        groups.entry(group).or_insert(&port.locator);
                    }
                    continue;
                }
                PortKind::Packet(packet) => (&packet.name, &packet.netns),
                PortKind::Host(host) => (&host.interface, &host.netns),
                _ => continue,
            };
            interfaces.entry(named).or_insert_with(|| owner_of(switch, endpoints.get(&id).map(|&id| EndpointId(id))));
        }
    }
    let groups = groups.into_iter().filter_map(|(group, locator)| match ports::group::number(group) {
        Ok(Some(_)) => None,
        Ok(None) => {
            Some(format!("there is no group \"{group}\"; make it (groupadd {group}), or correct `group` of {locator}"))
        }
        Err(error) => Some(format!("cannot read the system's groups: {error}; give {locator} the group's number")),
    });
    let interfaces = interfaces.into_iter().filter_map(|((name, netns), owner)| {
        // That there is no such namespace is said of the namespace.
        let found = packet::address(name, netns.as_deref().map(Netns::new).as_ref());
        let is_missing = matches!(found, Err(packet::OpenError::Missing(_)));
        let place = netns.as_ref().map_or_else(String::new, |netns| format!(" in namespace {netns}"));
        is_missing.then(|| {
            format!("there is no interface {name}{place}; {owner} waits for it (ip link lists those there are)")
        })
    });
    groups.chain(interfaces).collect()
}

/// What a configuration promises. Rates are in bits a second; `null` where there is none.
#[derive(Serialize)]
struct Summary {
    version: u32,
    name: String,
    warnings: Vec<String>,
    switches: Vec<SwitchSummary>,
    links: usize,
}

#[derive(Serialize)]
struct SwitchSummary {
    name: String,
    order: &'static str,
    ingress: &'static str,
    uplink: Option<UplinkSummary>,
    tenants: Vec<TenantSummary>,
}

#[derive(Serialize)]
struct UplinkSummary {
    port: String,
    /// Of an interface that exists: what becomes of the host's own traffic.
    host: Option<String>,
    egress: PromiseSummary,
    ingress: PromiseSummary,
}

#[derive(Serialize)]
struct PromiseSummary {
    rate_bps: u64,
    capacity_bps: u64,
    promised_bps: u64,
}

#[derive(Serialize)]
struct TenantSummary {
    name: String,
    network: String,
    endpoints: usize,
    egress: ShareSummary,
    ingress: ShareSummary,
}

#[derive(Serialize)]
struct ShareSummary {
    guarantee_bps: u64,
    limit_bps: Option<u64>,
    weight: u32,
}

impl Summary {
    fn new(checked: &Checked) -> Summary {
        let config: &Config = &checked.config;
        let plan = checked.plan.as_ref();
        let switches = plan.iter().flat_map(|p| p.switches.values()).zip(&config.switches);
        Summary {
            version: 1,
            name: config.daemon.name.clone(),
            warnings: checked.problems.iter().map(|p| format!("{}: {}", p.key, p.message)).collect(),
            switches: switches.map(|(plan, switch)| switch_summary(plan, switch)).collect(),
            links: config.links.len(),
        }
    }

    fn text(&self, file: &str) -> String {
        let mut out = format!("{file}: good; instance \"{}\"\n", self.name);
        for switch in &self.switches {
            let _ = writeln!(out, "\nswitch {}: order {}, ingress {}", switch.name, switch.order, switch.ingress);
            match &switch.uplink {
                Some(uplink) => {
                    let _ = writeln!(out, "  uplink {}", uplink.port);
                    if let Some(host) = &uplink.host {
                        let _ = writeln!(out, "    host     {host}");
                    }
                    for (word, promise) in [("egress", &uplink.egress), ("ingress", &uplink.ingress)] {
                        let _ = writeln!(out, "    {word:<8} {}", promise.text());
                    }
                }
                None => out += "  no uplink\n",
            }
            let width = switch.tenants.iter().map(|t| t.name.len()).max().unwrap_or(0);
            for tenant in &switch.tenants {
                let plural = if tenant.endpoints == 1 { " " } else { "s" };
                let _ = writeln!(
                    out,
                    "  tenant {:<width$}  {:<9}  {:>3} endpoint{plural}  egress {}, ingress {}",
                    tenant.name,
                    tenant.network,
                    tenant.endpoints,
                    tenant.egress.text(),
                    tenant.ingress.text()
                );
            }
        }
        out
    }
}

fn switch_summary(plan: &control::plan::SwitchPlan, switch: &Switch) -> SwitchSummary {
    let uplink = switch.uplink.as_ref().zip(plan.program.uplink.as_ref()).map(|(uplink, compiled)| {
        let one = |d: Direction| {
            let Promise { promised, capacity } =
                promise(switch, d).unwrap_or(Promise { promised: Rate(0), capacity: Rate(0) });
            PromiseSummary { rate_bps: uplink.rate.get(d).0, capacity_bps: capacity.0, promised_bps: promised.0 }
        };
        UplinkSummary {
            port: plan.uplink_ports().unwrap_or_default(),
            host: host(plan, compiled.port()),
            egress: one(Direction::Egress),
            ingress: one(Direction::Ingress),
        }
    });
    let mut members: BTreeMap<TenantId, usize> = BTreeMap::new();
    plan.program.endpoints.values().for_each(|endpoint| *members.entry(endpoint.tenant).or_default() += 1);
    let tenants = plan.program.tenants.iter().map(|(id, tenant)| TenantSummary {
        name: plan.tenants[id as usize].clone(),
        network: match tenant.attachment {
            Attachment::Isolated => "local".to_owned(),
            Attachment::Vlan(id) => format!("vlan {id}"),
            Attachment::Untagged => "untagged".to_owned(),
            Attachment::Vxlan(vni) => format!("vni {vni}"),
        },
        endpoints: members.get(&TenantId(id)).copied().unwrap_or_default(),
        egress: ShareSummary::new(&tenant.share.egress),
        ingress: ShareSummary::new(&tenant.share.ingress),
    });
    SwitchSummary {
        name: plan.name.clone(),
        order: name_of(&names::ORDERS, plan.program.order),
        ingress: name_of(&names::INGRESS_MODES, plan.program.ingress),
        uplink,
        tenants: tenants.collect(),
    }
}

/// What becomes of the host's own traffic over an uplink that is an interface of the host, and of
/// the agents' among it.
fn host(plan: &control::plan::SwitchPlan, uplink: PortId) -> Option<String> {
    let own = own_traffic(plan, uplink);
    let agents = plan.program.endpoints.iter().find_map(|(id, endpoint)| {
        let talk = endpoint.agent_traffic.as_ref()?;
        let pair = |of: &dyn Fn(Direction) -> Rate| {
            format!("{} out and {} in", show_rate(of(Direction::Egress)), show_rate(of(Direction::Ingress)))
        };
        let path = plan.endpoint_path(EndpointId(id));
        // It is the host's interface, or a device behind the switch.
        let it = if own.as_ref().is_some_and(|own| own.contains(&path)) { "it".to_owned() } else { path };
        Some(format!(
            "the agents' datagrams go before the rest of {it}, up to {}, and it has at least {}",
            pair(&|direction| *talk.rate.get(direction)),
            pair(&|direction| endpoint.share.get(direction).guarantee)
        ))
    });
    let all: Vec<String> = own.into_iter().chain(agents).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn own_traffic(plan: &control::plan::SwitchPlan, uplink: PortId) -> Option<String> {
    let PortKind::Packet(packet) = &plan.ports[uplink.0 as usize].kind else { return None };
    if plan.bond.is_some() {
        return Some(match &plan.underlay {
            Some(Underlay { vtep, interface: Some((name, _)), is_endpoint: true, .. }) => {
                format!("its own traffic from {vtep} is what comes by {name}")
            }
            _ => "its own traffic over these ports is not scheduled; over an endpoint with port = \"tap://host0\" it would be"
                .to_owned(),
        });
    }
    if !packet.is_exclusive {
        return Some(format!(
            "its own traffic is not scheduled; an endpoint with port = \"host://{}\" would be",
            packet.name
        ));
    }
    let is_it =
        |kind: &PortKind| matches!(kind, PortKind::Host(h) if h.interface == packet.name && h.netns == packet.netns);
    let port = plan.ports.iter().find(|(_, port)| is_it(&port.kind))?.0;
    let endpoint = plan.program.endpoints.iter().find(|(_, e)| e.port == PortId(port))?.0;
    let path = plan.endpoint_path(EndpointId(endpoint));
    Some(format!(
        "its own traffic is endpoint {path}, where the kernel allows it (Linux 6.6 with BPF; `levada show` tells)"
    ))
}

impl PromiseSummary {
    fn text(&self) -> String {
        let permille = (self.promised_bps * 1000).checked_div(self.capacity_bps).unwrap_or(0);
        format!(
            "{} of {} promised ({}.{} %); the link carries {}",
            show_rate(Rate(self.promised_bps)),
            show_rate(Rate(self.capacity_bps)),
            permille / 10,
            permille % 10,
            show_rate(Rate(self.rate_bps))
        )
    }
}

impl ShareSummary {
    fn new(share: &Share) -> ShareSummary {
        ShareSummary {
            guarantee_bps: share.guarantee.0,
            limit_bps: share.limit.is_limited().then_some(share.limit.0),
            weight: share.weight,
        }
    }

    fn text(&self) -> String {
        let mut text = match self.guarantee_bps {
            0 => "no guarantee".to_owned(),
            bps => format!("at least {}", show_rate(Rate(bps))),
        };
        if let Some(limit) = self.limit_bps {
            let _ = write!(text, ", at most {}", show_rate(Rate(limit)));
        }
        if self.weight != 1 {
            let _ = write!(text, ", weight {}", self.weight);
        }
        text
    }
}
