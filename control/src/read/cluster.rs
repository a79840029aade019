//! Reading `[cluster]` and what is in it.

use super::table::{Reader, Table};
use super::values;
use crate::config::{Cluster, Etcd, Member, Remote, RemoteService};
use agent::Settings;
use agent::settings::Gatekeeper;

pub(super) fn cluster(r: &mut Reader, mut t: Table<'_>) -> Cluster {
    let default = Cluster::default();
    let cluster = Cluster {
        host: r.need(&mut t, "host", "\"host1\"", values::host).unwrap_or_default(),
        listen: r.get(&mut t, "listen", values::listen),
        directory: r.get(&mut t, "directory", values::directory).unwrap_or(default.directory),
        settings: Settings {
            controller: r.get(&mut t, "controller", values::controller).unwrap_or_default(),
            gatekeeper: gatekeeper(r, &mut t),
        },
        etcd: r.table(&mut t, "etcd").map(|u| etcd(r, u)),
        members: r.tables(&mut t, "member").into_iter().map(|u| member(r, u)).collect(),
    };
    r.close(t);
    cluster
}

fn etcd(r: &mut Reader, mut t: Table<'_>) -> Etcd {
    let etcd = Etcd {
        endpoints: r.need_list(&mut t, "endpoints", "[\"http://127.0.0.1:2379\"]", values::etcd_url),
        prefix: r.get(&mut t, "prefix", values::prefix_of_keys).unwrap_or(Etcd::default().prefix),
        authority: r.get(&mut t, "authority", values::file),
        certificate: r.get(&mut t, "certificate", values::file),
        key: r.get(&mut t, "key", values::file),
        user: r.get(&mut t, "user", values::user),
        password_file: r.get(&mut t, "password_file", values::file),
    };
    r.close(t);
    etcd
}

fn gatekeeper(r: &mut Reader, t: &mut Table<'_>) -> Gatekeeper {
    let default = Gatekeeper::default();
    Gatekeeper {
        sample_ns: r.get(t, "sample", values::interval).unwrap_or(default.sample_ns),
        samples: r.get(t, "samples", values::samples).unwrap_or(default.samples),
        drop_ppm: r.get(t, "drop", values::part).unwrap_or(default.drop_ppm),
        notify_ns: r.get(t, "notify", values::interval).unwrap_or(default.notify_ns),
        recovery_ns: r.get(t, "recovery", values::interval).unwrap_or(default.recovery_ns),
    }
}

pub(super) fn member(r: &mut Reader, mut t: Table<'_>) -> Member {
    let name = r.name_as(&mut t, "\"host2\"", values::host);
    let vtep = r.get(&mut t, "vtep", values::vtep);
    // A host without Levada may still be an end of tunnels.
    let address = if t.has("vtep") {
        r.get(&mut t, "address", values::peer_address)
    } else {
        r.need(&mut t, "address", "\"192.0.2.2:7370\"", values::peer_address)
    };
    let member = Member {
        name,
        address,
        vtep,
        endpoints: r.tables(&mut t, "endpoint").into_iter().map(|u| remote(r, u)).collect(),
        services: r.tables(&mut t, "service").into_iter().map(|u| remote_service(r, u)).collect(),
    };
    r.close(t);
    member
}

fn remote(r: &mut Reader, mut t: Table<'_>) -> Remote {
    let remote = Remote {
        name: r.name(&mut t, "\"red2\""),
        tenant: r.need(&mut t, "tenant", "\"red\"", values::name).unwrap_or_default(),
        macs: r.need_list(&mut t, "mac", "\"02:00:00:00:00:02\"", values::mac),
        ips: r.list(&mut t, "ip", values::endpoint_ip),
    };
    r.close(t);
    remote
}

fn remote_service(r: &mut Reader, mut t: Table<'_>) -> RemoteService {
    let service = RemoteService {
        name: r.name(&mut t, "\"web\""),
        tenant: r.need(&mut t, "tenant", "\"red\"", values::name).unwrap_or_default(),
        ips: r.need_list(&mut t, "address", "\"10.0.0.100\"", values::service_ip),
        mac: r.get(&mut t, "mac", values::mac),
    };
    r.close(t);
    service
}
