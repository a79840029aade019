//! Writing a configuration: the reverse of `read`, key by key, as JSON values with the words that
//! the file has for them.
//!
//! Only what differs from its default is written, so that two configurations that mean the same are
//! written the same. What is written reads back as what it was; a test of every example and the
//! fuzz target `config` see to that.

use crate::bond::{self, RESELECTS};
use crate::config::{
    Backend, Bond, BondMember, Cluster, Config, Daemon, Device, Endpoint, Etcd, Knobs, Link, Member, Remote,
    RemoteService, Service, Switch, Tenant, Uplink,
};
use crate::names::{
    AFFINITIES, AT, CLASSIC, CONTROLLERS, INGRESS_MODES, LOSS, MPTCP, ON_FAILURE, ORDERS, PERMISSIONS, POLICIES,
    WHEN_DOWN, name_of, show_mac,
};
use crate::units::{show_percent, show_rate, show_time, write_size};
use datapath::aqm::{At, Discipline};
use datapath::bond::BondSettings;
use datapath::bond::lacp::LacpSettings;
use datapath::guard::{Allow, Identity};
use datapath::link::LinkConfig;
use datapath::program::Attachment;
use datapath::service::{Ask, Check, Http};
use datapath::units::{Both, Rate};
use serde_json::{Map, Value};

/// The keys of one thing, as the file writes them.
pub type Keys = Map<String, Value>;

/// Collects keys.
#[derive(Default)]
struct Writer(Keys);

impl Writer {
    fn put(&mut self, key: &str, value: impl Into<Value>) {
        self.0.insert(key.to_owned(), value.into());
    }

    fn put_unless_default<T: PartialEq>(&mut self, key: &str, value: &T, default: &T, show: impl FnOnce(&T) -> Value) {
        if value != default {
            self.put(key, show(value));
        }
    }

    fn put_some<T>(&mut self, key: &str, value: Option<T>, show: impl FnOnce(T) -> Value) {
        if let Some(value) = value {
            self.put(key, show(value));
        }
    }

    /// One value, or a list of several; nothing for none.
    fn put_list(&mut self, key: &str, mut values: Vec<Value>) {
        match values.len() {
            0 => {}
            1 => self.put(key, values.remove(0)),
            _ => self.put(key, values),
        }
    }

    /// One value for both directions, or a table.
    fn put_both<T: Copy + PartialEq>(&mut self, key: &str, both: &Both<Option<T>>, show: impl Fn(T) -> Value) {
        match (both.egress, both.ingress) {
            (None, None) => {}
            (Some(egress), Some(ingress)) if egress == ingress => self.put(key, show(egress)),
            (egress, ingress) => {
                let mut table = Writer::default();
                table.put_some("egress", egress, &show);
                table.put_some("ingress", ingress, &show);
                self.put(key, table.0);
            }
        }
    }
}

fn rate(rate: Rate) -> Value {
    show_rate(rate).into()
}

/// The whole configuration, in the form of the file.
#[must_use]
pub fn config(config: &Config) -> Keys {
    let mut w = Writer::default();
    let named = |name: &str, keys: Keys| {
        let mut all = Keys::new();
        all.insert("name".to_owned(), name.into());
        all.extend(keys);
        all
    };
    let list = |items: Vec<Keys>| items.into_iter().map(Value::Object).collect::<Vec<_>>();
    w.put("daemon", named(&config.daemon.name, daemon(&config.daemon)));
    let switches = config.switches.iter().map(|s| {
        let mut keys = named(&s.name, switch(s));
        if let Some(u) = &s.uplink {
            keys.insert("uplink".to_owned(), uplink(u).into());
        }
        let tenants = s.tenants.iter().map(|t| {
            let mut keys = named(&t.name, tenant(t));
            let endpoints: Vec<_> = t.endpoints.iter().map(|e| named(&e.name, endpoint(e))).collect();
            if !endpoints.is_empty() {
                keys.insert("endpoint".to_owned(), list(endpoints).into());
            }
            let services: Vec<_> = t
                .services
                .iter()
                .map(|s| {
                    let mut keys = named(&s.name, service(s));
                    let backends: Vec<_> = s.backends.iter().map(|b| named(&b.name, backend(b))).collect();
                    if !backends.is_empty() {
                        keys.insert("backend".to_owned(), list(backends).into());
                    }
                    keys
                })
                .collect();
            if !services.is_empty() {
                keys.insert("service".to_owned(), list(services).into());
            }
            keys
        });
        let tenants: Vec<_> = tenants.collect();
        if !tenants.is_empty() {
            keys.insert("tenant".to_owned(), list(tenants).into());
        }
        keys
    });
    w.put("switch", list(switches.collect()));
    if !config.links.is_empty() {
        w.put("link", list(config.links.iter().map(|l| named(&l.name, link(l))).collect()));
    }
    if let Some(c) = &config.cluster {
        let mut keys = cluster(c);
        if !c.members.is_empty() {
            keys.insert(
                "member".to_owned(),
                list(c.members.iter().map(|m| named(&m.name, member(m))).collect()).into(),
            );
        }
        w.put("cluster", keys);
    }
    w.0
}

/// The keys of `[cluster]` but its members.
#[must_use]
pub fn cluster(cluster: &Cluster) -> Keys {
    let (mut w, default) = (Writer::default(), Cluster::default());
    w.put("host", cluster.host.as_str());
    w.put_some("listen", cluster.listen, |v| v.to_string().into());
    w.put_unless_default("directory", &cluster.directory, &default.directory, |v| v.as_str().into());
    let (settings, usual) = (&cluster.settings, &default.settings);
    w.put_unless_default("controller", &settings.controller, &usual.controller, |&v| name_of(&CONTROLLERS, v).into());
    let (parameters, usual) = (&settings.gatekeeper, &usual.gatekeeper);
    let time = |&v: &u64| show_time(v).into();
    w.put_unless_default("sample", &parameters.sample_ns, &usual.sample_ns, time);
    w.put_unless_default("samples", &parameters.samples, &usual.samples, |&v| v.into());
    w.put_unless_default("drop", &parameters.drop_ppm, &usual.drop_ppm, |&v| show_percent(v).into());
    w.put_unless_default("notify", &parameters.notify_ns, &usual.notify_ns, time);
    w.put_unless_default("recovery", &parameters.recovery_ns, &usual.recovery_ns, time);
    w.put_some("etcd", cluster.etcd.as_ref(), |v| etcd(v).into());
    w.0
}

fn etcd(etcd: &Etcd) -> Keys {
    let (mut w, default) = (Writer::default(), Etcd::default());
    w.put("endpoints", etcd.endpoints.iter().map(|url| url.to_string().into()).collect::<Vec<Value>>());
    w.put_unless_default("prefix", &etcd.prefix, &default.prefix, |v| v.as_str().into());
    w.put_some("authority", etcd.authority.as_deref(), Into::into);
    w.put_some("certificate", etcd.certificate.as_deref(), Into::into);
    w.put_some("key", etcd.key.as_deref(), Into::into);
    w.put_some("user", etcd.user.as_deref(), Into::into);
    w.put_some("password_file", etcd.password_file.as_deref(), Into::into);
    w.0
}

/// The keys of a member of the cluster but its name.
#[must_use]
pub fn member(member: &Member) -> Keys {
    let mut w = Writer::default();
    w.put_some("address", member.address, |v| v.to_string().into());
    w.put_some("vtep", member.vtep, |v| v.to_string().into());
    let endpoints: Vec<Value> = member.endpoints.iter().map(|e| remote(e).into()).collect();
    if !endpoints.is_empty() {
        w.put("endpoint", endpoints);
    }
    let services: Vec<Value> = member.services.iter().map(|s| remote_service(s).into()).collect();
    if !services.is_empty() {
        w.put("service", services);
    }
    w.0
}

fn remote_service(service: &RemoteService) -> Keys {
    let mut w = Writer::default();
    w.put("name", service.name.as_str());
    w.put("tenant", service.tenant.as_str());
    w.put_list("address", service.ips.iter().map(|ip| ip.to_string().into()).collect());
    w.put_some("mac", service.mac, |mac| show_mac(mac).into());
    w.0
}

fn remote(remote: &Remote) -> Keys {
    let mut w = Writer::default();
    w.put("name", remote.name.as_str());
    w.put("tenant", remote.tenant.as_str());
    w.put_list("mac", remote.macs.iter().map(|&mac| show_mac(mac).into()).collect());
    w.put_list("ip", remote.ips.iter().map(|ip| ip.to_string().into()).collect());
    w.0
}

/// The keys of `[daemon]` but its name.
#[must_use]
pub fn daemon(daemon: &Daemon) -> Keys {
    let (mut w, default) = (Writer::default(), Daemon::default());
    w.put_unless_default("spin", &daemon.spin, &default.spin, |&v| v.into());
    w.put_unless_default("memory", &daemon.memory_bytes, &default.memory_bytes, |&v| write_size(v).into());
    w.put_some("socket_group", daemon.socket_group.as_deref(), Into::into);
    w.put_some("reports", daemon.reports, |v| v.to_string().into());
    w.0
}

/// The keys of a switch but its name, uplink and tenants.
#[must_use]
pub fn switch(switch: &Switch) -> Keys {
    let (mut w, default) = (Writer::default(), Switch::default());
    w.put_unless_default("order", &switch.order, &default.order, |&v| name_of(&ORDERS, v).into());
    w.put_unless_default("ingress", &switch.ingress, &default.ingress, |&v| name_of(&INGRESS_MODES, v).into());
    w.put_some("headroom", switch.headroom_ppm, |v| show_percent(v).into());
    w.put_unless_default("fdb_age", &switch.fdb_age_ns, &default.fdb_age_ns, |&v| show_time(v).into());
    w.put_some("connections", switch.connections, Into::into);
    let mut vcc = Writer::default();
    vcc.put_some("flows", switch.flows, Into::into);
    vcc.put_unless_default("rescale", &switch.rescales, &default.rescales, |&v| v.into());
    w.put_some("vcc", (!vcc.0.is_empty()).then_some(vcc.0), Into::into);
    w.put_unless_default("shortcut", &switch.shortcut, &default.shortcut, |&v| v.into());
    w.0
}

/// The keys of an uplink.
#[must_use]
pub fn uplink(uplink: &Uplink) -> Keys {
    let mut w = Writer::default();
    let some = Both { egress: Some(uplink.rate.egress), ingress: Some(uplink.rate.ingress) };
    match &uplink.bond {
        None => {
            device(&mut w, &uplink.device);
            w.put_some("mac", uplink.device.mac, |v| show_mac(v).into());
            w.put_both("rate", &some, rate);
        }
        Some(one) => {
            w.put("bond", bond(one));
        }
    }
    w.put_some("burst", uplink.burst_ns, |v| show_time(v).into());
    w.put_some("vtep", uplink.vtep, |v| v.to_string().into());
    w.put_some("flood_per_second", uplink.flood_per_second, Into::into);
    w.put_some("flood_rate", uplink.flood_rate, rate);
    w.put_some("aqm", uplink.aqm.as_ref(), aqm);
    w.0
}

fn bond(one: &Bond) -> Keys {
    let mut keys = bond_options(one);
    let members: Vec<Value> = one.members.iter().map(|member| bond_member(member).into()).collect();
    keys.insert("member".to_owned(), members.into());
    keys
}

/// The keys of a bond but its members.
#[must_use]
pub fn bond_options(bond: &Bond) -> Keys {
    let (mut w, default) = (Writer::default(), Bond::default());
    let (settings, usual) = (&bond.settings, &default.settings);
    w.put("mode", settings.mode.name());
    w.put_unless_default("xmit_hash_policy", &settings.hash, &usual.hash, |v| v.name().into());
    let (packets, one) = (settings.packets_per_member, usual.packets_per_member);
    w.put_unless_default("packets_per_slave", &packets, &one, |&v| v.into());
    let all = (settings.all_members_active, usual.all_members_active);
    w.put_unless_default("all_slaves_active", &all.0, &all.1, |&v| u32::from(v).into());
    let time = |&v: &u64| show_time(v).into();
    let order = |settings: &BondSettings| (settings.order, settings.encoding);
    w.put_unless_default("order", &order(settings), &order(usual), |&v| name_of(&bond::ORDERS, v).into());
    w.put_unless_default("hold", &settings.hold_ns, &usual.hold_ns, time);
    w.put_some("secret_file", bond.secret_file.as_deref(), Into::into);
    w.put_unless_default("miimon", &bond.miimon_ns, &default.miimon_ns, time);
    w.put_unless_default("updelay", &bond.updelay_ns, &default.updelay_ns, time);
    w.put_unless_default("downdelay", &bond.downdelay_ns, &default.downdelay_ns, time);
    w.put_some("primary", bond.primary.as_deref(), Into::into);
    w.put_unless_default("primary_reselect", &bond.reselect, &default.reselect, |&v| name_of(&RESELECTS, v).into());
    let (notices, as_usual) = (&bond.notices, &default.notices);
    w.put_unless_default("num_grat_arp", &notices.announcements, &as_usual.announcements, |&v| v.into());
    w.put_unless_default("peer_notif_delay", &notices.gap_ns, &as_usual.gap_ns, time);
    w.put_unless_default("resend_igmp", &notices.queries, &as_usual.queries, |&v| v.into());
    lacp(&mut w, bond);
    w.0
}

fn lacp(w: &mut Writer, bond: &Bond) {
    let (lacp, usual) = (&bond.settings.lacp, &LacpSettings::default());
    let rate = |&v: &bool| if v { "fast" } else { "slow" }.into();
    w.put_unless_default("lacp_rate", &lacp.is_fast, &usual.is_fast, rate);
    let on = |&v: &bool| if v { "on" } else { "off" }.into();
    w.put_unless_default("lacp_active", &lacp.is_active, &usual.is_active, on);
    w.put_unless_default("coupled_control", &lacp.is_coupled, &usual.is_coupled, on);
    w.put_unless_default("lacp_strict", &lacp.is_strict, &usual.is_strict, on);
    w.put_unless_default("min_links", &lacp.min_links, &usual.min_links, |&v| v.into());
    w.put_unless_default("ad_select", &lacp.select, &usual.select, |v| v.name().into());
    w.put_unless_default("ad_actor_sys_prio", &lacp.system_priority, &usual.system_priority, |&v| v.into());
    w.put_some("ad_actor_system", bond.system, |v| show_mac(v).into());
    w.put_unless_default("ad_user_port_key", &lacp.user_key, &usual.user_key, |&v| v.into());
}

/// The keys of a member of a bond.
#[must_use]
pub fn bond_member(member: &BondMember) -> Keys {
    let mut w = Writer::default();
    device(&mut w, &member.device);
    w.put_some("mac", member.device.mac, |v| show_mac(v).into());
    w.put("rate", rate(member.rate));
    w.put_unless_default("prio", &member.priority, &0, |&v| v.into());
    let usual = BondMember::default().port_priority;
    w.put_unless_default("ad_actor_port_prio", &member.port_priority, &usual, |&v| v.into());
    w.put_unless_default("admin", &member.is_down, &false, |_| "down".into());
    w.0
}

/// The keys of a tenant but its name, endpoints and services.
#[must_use]
pub fn tenant(tenant: &Tenant) -> Keys {
    let mut w = Writer::default();
    match tenant.attachment {
        Attachment::Isolated => {}
        Attachment::Vlan(id) => w.put("vlan", id),
        Attachment::Untagged => w.put("vlan", "untagged"),
        Attachment::Vxlan(vni) => w.put("vni", vni),
    }
    let macs = tenant.outside.macs.iter().map(|&mac| show_mac(mac));
    let ips = tenant.outside.ips.iter().map(ToString::to_string);
    w.put_list("outside", macs.chain(ips).map(Value::from).collect());
    knobs(&mut w, &tenant.knobs);
    w.put_some("aqm", tenant.aqm.as_ref(), aqm);
    w.put_some("flood_rate", tenant.flood_rate, rate);
    w.put_unless_default("vcc", &tenant.vcc.mode, &Default::default(), |mode| mode.name().into());
    w.put_unless_default("police", &tenant.vcc.polices, &false, |&on| on.into());
    w.put_unless_default("hold_acks", &tenant.vcc.holds, &false, |&on| on.into());
    w.put_unless_default("mptcp", &tenant.vcc.strips_multipath, &false, |&v| name_of(&MPTCP, v).into());
    w.put_unless_default("loss", &tenant.vcc.ignores_loss, &false, |&v| name_of(&LOSS, v).into());
    w.put_unless_default("classic", &tenant.vcc.passes_classic, &false, |&v| name_of(&CLASSIC, v).into());
    w.0
}

/// The keys of an endpoint but its name.
#[must_use]
pub fn endpoint(endpoint: &Endpoint) -> Keys {
    let (mut w, default) = (Writer::default(), Endpoint::default());
    device(&mut w, &endpoint.device);
    identity(&mut w, &endpoint.identity);
    w.put_unless_default("trunk", &endpoint.trunk, &default.trunk, |&v| v.into());
    knobs(&mut w, &endpoint.knobs);
    w.put_unless_default("queue", &endpoint.queue_bytes, &default.queue_bytes, |&v| write_size(v).into());
    w.put_some("aqm", endpoint.aqm.as_ref(), aqm);
    w.put_some("vcc", endpoint.vcc, |mode| mode.name().into());
    w.put_some("mptcp", endpoint.strips_multipath, |v| name_of(&MPTCP, v).into());
    w.put_some("loss", endpoint.ignores_loss, |v| name_of(&LOSS, v).into());
    w.put_some("classic", endpoint.passes_classic, |v| name_of(&CLASSIC, v).into());
    w.put_some("flood_per_second", endpoint.flood_per_second, Into::into);
    w.put_some("flood_rate", endpoint.flood_rate, rate);
    w.put_some("max_learned", endpoint.max_learned, Into::into);
    w.0
}

/// The keys of a service but its name and backends.
#[must_use]
pub fn service(service: &Service) -> Keys {
    let (mut w, default) = (Writer::default(), Service::default());
    w.put_list("address", service.addresses.iter().map(|address| address.to_string().into()).collect());
    w.put_unless_default("policy", &service.policy, &default.policy, |&v| name_of(&POLICIES, v).into());
    w.put_some("mac", service.mac, |v| show_mac(v).into());
    w.put_unless_default("when_down", &service.when_down, &default.when_down, |&v| name_of(&WHEN_DOWN, v).into());
    w.put_unless_default("ping", &service.ping, &default.ping, |&v| v.into());
    w.put_unless_default("report_period", &service.report_period_ns, &default.report_period_ns, |&v| {
        show_time(v).into()
    });
    w.put_unless_default("slow_start", &service.slow_start_ns, &default.slow_start_ns, |&v| show_time(v).into());
    w.put_some("check", service.check.as_ref(), check);
    w.put_unless_default("drain_time", &service.drain_ns, &default.drain_ns, |&v| show_time(v).into());
    w.put_unless_default("on_failure", &service.on_failure, &default.on_failure, |&v| name_of(&ON_FAILURE, v).into());
    w.put_unless_default("panic", &service.panic_ppm, &default.panic_ppm, |&v| show_percent(v).into());
    w.put_unless_default("affinity", &service.affinity, &default.affinity, |&v| name_of(&AFFINITIES, v).into());
    w.put_unless_default("affinity_time", &service.affinity_ns, &default.affinity_ns, |&v| show_time(v).into());
    w.put_some("max_connections", service.max_connections, Into::into);
    w.put_unless_default("hold", &service.hold_ns, &default.hold_ns, |&v| show_time(v).into());
    w.put_some("director", service.director.as_deref(), Into::into);
    w.0
}

/// The keys of a backend but its name.
#[must_use]
pub fn backend(backend: &Backend) -> Keys {
    let (mut w, default) = (Writer::default(), Backend::default());
    w.put_some("endpoint", backend.endpoint.as_deref(), Into::into);
    w.put_list("ip", backend.ips.iter().map(|ip| ip.to_string().into()).collect());
    w.put_some("mac", backend.mac, |v| show_mac(v).into());
    w.put_some("port", backend.port, Into::into);
    w.put_unless_default("weight", &backend.weight, &default.weight, |&v| v.into());
    w.put_unless_default("drain", &backend.drain, &default.drain, |&v| v.into());
    w.put_some("drain_time", backend.drain_ns, |v| show_time(v).into());
    w.put_unless_default("cores", &backend.cores, &default.cores, |&v| v.into());
    w.put_some("max_connections", backend.max_connections, Into::into);
    w.put_some("key", backend.key.as_deref(), Into::into);
    w.0
}

/// The keys of a link but its name.
#[must_use]
pub fn link(link: &Link) -> Keys {
    let (mut w, default) = (Writer::default(), LinkConfig::default());
    w.put("rate", rate(link.rate));
    w.put_unless_default("delay", &link.delay_ns, &default.delay_ns, |&v| show_time(v).into());
    w.put_unless_default("queue", &link.queue_bytes, &default.queue_bytes, |&v| write_size(v.into()).into());
    w.put_unless_default("aqm", &link.discipline, &default.discipline, aqm);
    w.put_unless_default("loss", &link.loss_ppm, &0, |&v| show_percent(v).into());
    w.0
}

/// A queue's discipline.
fn check(check: &Check) -> Value {
    let (mut w, default, page) = (Writer::default(), Check::default(), Http::default());
    match &check.ask {
        Ask::Port => w.put("kind", "tcp"),
        Ask::Http(http) => {
            w.put("kind", "http");
            w.put_unless_default("path", &http.path, &page.path, |v| v.as_str().into());
            w.put_some("host", http.host.as_deref(), Into::into);
            let (first, last) = http.status;
            w.put_unless_default("status", &http.status, &page.status, |_| format!("{first}-{last}").into());
        }
        Ask::Tls(tls) => {
            w.put("kind", "tls");
            w.put_some("host", tls.host.as_deref(), Into::into);
        }
    }
    w.put_unless_default("interval", &check.interval_ns, &default.interval_ns, |&v| show_time(v).into());
    let timeout_ns = default.timeout_ns.min(check.interval_ns);
    w.put_unless_default("timeout", &check.timeout_ns, &timeout_ns, |&v| show_time(v).into());
    w.put_unless_default("rise", &check.rise, &default.rise, |&v| v.into());
    w.put_unless_default("fall", &check.fall, &default.fall, |&v| v.into());
    w.0.into()
}

fn aqm(discipline: &Discipline) -> Value {
    let mut w = Writer::default();
    w.put("kind", discipline.name());
    match discipline {
        Discipline::DropTail | Discipline::Codel | Discipline::Auto => {}
        Discipline::Red(red) => {
            w.put("min", write_size(red.min_bytes.into()));
            w.put("max", write_size(red.max_bytes.into()));
            w.put("probability", show_percent(red.probability_ppm));
            w.put("weight", format!("1/{}", 1u32 << red.weight_log));
            w.put_unless_default("gentle", &red.gentle, &false, |&v| v.into());
            w.put_unless_default("bytes", &red.bytes, &false, |&v| v.into());
        }
        Discipline::Step(step) => {
            w.put("threshold", write_size(step.mark_bytes.into()));
            w.put_unless_default("at", &step.at, &At::Arrival, |&v| name_of(&AT, v).into());
        }
        Discipline::Sojourn { target_ns } => w.put("target", show_time(*target_ns)),
    }
    w.0.into()
}

fn knobs(w: &mut Writer, knobs: &Knobs) {
    w.put_both("guarantee", &knobs.guarantee, rate);
    w.put_both("limit", &knobs.limit, rate);
    w.put_both("weight", &knobs.weight, Into::into);
}

fn device(w: &mut Writer, device: &Device) {
    let default = Device::default();
    w.put_some("port", device.locator.as_ref(), |v| v.to_string().into());
    w.put_some("netns", device.netns.as_deref(), Into::into);
    w.put_list("address", device.addresses.iter().map(|(ip, length)| format!("{ip}/{length}").into()).collect());
    w.put_unless_default("mtu", &device.mtu, &default.mtu, |&v| v.into());
    w.put_some("ring", device.ring, Into::into);
    w.put_unless_default("ipv6", &device.ipv6, &default.ipv6, |&v| v.into());
    w.put_unless_default("persistent", &device.persistent, &default.persistent, |&v| v.into());
    w.put_unless_default("hub", &device.hub, &default.hub, |&v| v.into());
    w.put_some("mode", device.mode, |v| format!("{v:04o}").into());
    w.put_some("group", device.group.as_deref(), Into::into);
    w.put_unless_default("queues", &device.queues, &default.queues, |&v| v.into());
    w.put_unless_default("listen", &device.listen, &default.listen, |&v| v.into());
    w.put_unless_default("offload", &device.offload, &default.offload, |&v| v.into());
    w.put_unless_default("sealed", &device.sealed, &default.sealed, |&v| v.into());
}

fn identity(w: &mut Writer, identity: &Identity) {
    w.put_list("mac", identity.macs.iter().map(|&mac| show_mac(mac).into()).collect());
    let prefix = |ip: String, length: u8, most: u8| {
        if length == most { Value::from(ip) } else { format!("{ip}/{length}").into() }
    };
    let ipv4 = identity.ipv4.iter().map(|&(ip, length)| prefix(ip.to_string(), length, 32));
    let ipv6 = identity.ipv6.iter().map(|&(ip, length)| prefix(ip.to_string(), length, 128));
    w.put_list("ip", ipv4.chain(ipv6).collect());
    let Allow { dhcp_server, router, control_protocols, learned_addresses } = identity.allow;
    let given = PERMISSIONS.iter().filter(|(_, one)| {
        one.dhcp_server && dhcp_server
            || one.router && router
            || one.control_protocols && control_protocols
            || one.learned_addresses && learned_addresses
    });
    w.put_list("allow", given.map(|&(word, _)| word.into()).collect());
}
