//! Forgetting: what a host that is lost for good has left in the store is taken out, by an
//! operator's command on any host (`levada cluster forget`).
//!
//! It is what the host itself would do if it were told to leave ([`super::store_state`]), under one
//! more condition: that its daemon is not there. The store holds each write to that, so a host that
//! comes back in the very moment keeps what it has.

use super::entry::Key;
use super::etcd::{enter, read, write};
use super::gateway::{Gateway, tls};
use super::store_state::{If, Own};
use control::config::{Etcd, EtcdUrl};

/// Takes out everything of a host that is not there; the keys that are gone.
///
/// # Errors
/// Why not, in words: the host is there, or nobody of the etcd can be used. What is gone by then
/// stays gone.
pub fn forget(config: &Etcd, host: &str) -> Result<Vec<String>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot begin: {error}"))?;
    runtime.block_on(async {
        let mut why = "there is no etcd in [cluster.etcd] endpoints".to_owned();
        for url in &config.endpoints {
            match open(config, url).await {
                Ok(mut gateway) => return take_out(&mut gateway, &config.prefix, host).await,
                Err(error) => why = format!("{url}: {error}"),
            }
        }
        Err(why)
    })
}

async fn open(config: &Etcd, url: &EtcdUrl) -> Result<Gateway, String> {
    let tls = tls(config)?;
    enter(config, url, tls.as_ref()).await
}

async fn take_out(gateway: &mut Gateway, prefix: &str, host: &str) -> Result<Vec<String>, String> {
    // A host that is to leave the store, and has nothing.
    let own = Own { host: host.to_owned(), ..Own::default() };
    let mut store_state = read(gateway, prefix, own, 0).await?;
    let mut gone = Vec::new();
    loop {
        if store_state.is_alive(host) {
            let from = store_state.rival().unwrap_or("(whose entry cannot be read)");
            return Err(format!(
                "host \"{host}\" is there: its daemon {from} was heard of within 15 s; to take it out of the store, run there: levada set cluster etcd="
            ));
        }
        let Some(mut wanted) = store_state.next_write() else { return Ok(gone) };
        wanted.conditions.push(If::Absent(Key::Alive(host.to_owned())));
        if write(gateway, prefix, &mut store_state, &wanted, 0).await? {
            gone.push(wanted.key.path(prefix));
        }
    }
}
